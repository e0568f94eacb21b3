//! Devices, buffers and buffer views.

use crate::support::device;
use iree_rt::{
    Buffer, BufferView, Code, Device, DeviceOptions, Element, ElementType, Instance, Memory,
    Upload, bf16, f16,
};

fn cpu() -> Device {
    device("local-sync")
}

#[test]
fn drivers_and_their_devices() {
    let drivers = Instance::get().unwrap().drivers().unwrap();
    for name in ["local-task", "local-sync"] {
        let driver = drivers.iter().find(|driver| driver.name == name).unwrap();
        assert!(!driver.description.is_empty());
        let devices = driver.devices().unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].uri, name);
        assert!(Instance::get().unwrap().device(&devices[0].uri).is_ok());
    }
}

#[test]
fn an_unknown_device_lists_the_known_drivers() {
    let instance = Instance::get().unwrap();
    for uri in ["vulcan", "vulcan://0", ""] {
        let error = instance.device(uri).unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        assert!(error.message().contains("local-task"), "{error}");
    }
}

#[test]
fn worker_threads_are_as_asked() {
    let instance = Instance::get().unwrap();
    let open = |threads, cpus| {
        let options = DeviceOptions::default().threads(threads).cpus(cpus);
        instance.device_with("local-task", &options)
    };
    assert_eq!(open(Some(3), None).unwrap().threads(), Some(3));
    assert!(open(None, None).unwrap().threads().unwrap() >= 1);
    assert_eq!(open(None, Some(vec![0])).unwrap().threads(), Some(1));
    for bad in [open(Some(0), None), open(Some(65), None), open(Some(2), Some(vec![0]))] {
        assert_eq!(bad.unwrap_err().code(), Code::InvalidArgument);
    }
    let options = DeviceOptions::default().threads(1);
    let error = instance.device_with("local-sync", &options).unwrap_err();
    assert!(error.message().contains("local-sync"), "{error}");
}

fn round_trip<T: Element + PartialEq + std::fmt::Debug>(values: &[T]) {
    for uri in ["local-task", "local-sync"] {
        let device = device(uri);
        let mut view = device.buffer_view(&[values.len()], values).unwrap();
        assert_eq!(view.element_type(), T::TYPE);
        assert_eq!(view.byte_len(), size_of_val(values));
        assert_eq!(view.read::<T>().unwrap(), values);
        let mut out = vec![values[0]; values.len()];
        view.read_into(&mut out).unwrap();
        assert_eq!(out, values);
        assert_eq!(view.read_range::<T>(1..3).unwrap(), values[1..3]);
        let mut two = [values[0]; 2];
        view.read_range_into(1, &mut two).unwrap();
        assert_eq!(two, values[1..3]);
        // SAFETY: nothing writes the tensor.
        assert_eq!(*unsafe { view.map::<T>() }.unwrap(), *values);
        view.write(0, &values[2..3]).unwrap();
        assert_eq!(view.read_range::<T>(0..1).unwrap(), values[2..3]);
    }
}

fn fill<T: Element + PartialEq + std::fmt::Debug>(value: T) {
    for uri in ["local-task", "local-sync"] {
        for count in [0, 1, 2, 3, 1000] {
            let mut view = BufferView::uninitialized(&device(uri), &[count], T::TYPE).unwrap();
            view.fill(value).unwrap();
            assert_eq!(view.read::<T>().unwrap(), vec![value; count]);
        }
    }
}

#[test]
fn every_element_type_fills() {
    fill(1.5f32);
    fill(-0.1f64);
    fill(f16::from_f32(1.5));
    fill(bf16::from_f32(3e38));
    fill(-1i8);
    fill(-2i16);
    fill(-3i32);
    fill(i64::MIN + 1);
    fill(u8::MAX);
    fill(0x0102u16);
    fill(0x0102_0304u32);
    fill(0x0102_0304_0506_0708u64);
    fill(true);
    let mut view = cpu().buffer_view(&[2], &[1f32; 2]).unwrap();
    assert_eq!(view.fill(1i32).unwrap_err().code(), Code::InvalidArgument);
    let huge = BufferView::uninitialized(&cpu(), &[usize::MAX / 2, 8], ElementType::F32);
    assert_eq!(huge.unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn every_element_type_round_trips() {
    round_trip(&[1.5f32, -0.0, f32::MAX]);
    round_trip(&[1.5f64, f64::MIN_POSITIVE, -3.0]);
    round_trip(&[1.5, 65504.0, -2.0].map(f16::from_f32));
    round_trip(&[1.5, 3e38, -2.0].map(bf16::from_f32));
    round_trip(&[1i8, i8::MIN, i8::MAX]);
    round_trip(&[1i16, i16::MIN, i16::MAX]);
    round_trip(&[1i32, i32::MIN, i32::MAX]);
    round_trip(&[1i64, i64::MIN, i64::MAX]);
    round_trip(&[1u8, 0, u8::MAX]);
    round_trip(&[1u16, 0, u16::MAX]);
    round_trip(&[1u32, 0, u32::MAX]);
    round_trip(&[1u64, 0, u64::MAX]);
    round_trip(&[true, false, true]);
}

#[test]
fn another_type_or_range_is_an_error() {
    let mut view = cpu().buffer_view(&[2, 3], &[1i32; 6]).unwrap();
    let error = view.read::<f32>().unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("i32") && error.message().contains("f32"), "{error}");
    assert!(view.read_into(&mut [0i64; 6]).is_err());
    assert!(view.write(0, &[1f32]).is_err());
    // SAFETY: nothing writes the tensor.
    assert!(unsafe { view.map::<i16>() }.is_err());
    assert_eq!(view.read_into(&mut [0i32; 5]).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(view.read_range::<i32>(5..7).unwrap_err().code(), Code::OutOfRange);
    assert_eq!(view.read_range_into(usize::MAX, &mut [0i32]).unwrap_err().code(), Code::OutOfRange);
    assert_eq!(view.write(6, &[1i32]).unwrap_err().code(), Code::OutOfRange);
    let error = cpu().buffer_view(&[2, 2], &[1f32; 3]).unwrap_err();
    assert!(
        error.message().contains("3 elements") && error.message().contains("[2, 2]"),
        "{error}"
    );
    assert!(cpu().buffer_view(&[usize::MAX, 2], &[1f32; 3]).is_err());
}

#[test]
fn a_byte_that_is_no_bool_is_an_error() {
    let mut buffer = Buffer::allocate(&cpu(), 4).unwrap();
    buffer.write(0, &[1u8, 0, 2, 1]).unwrap();
    let view = buffer.view(&[4], ElementType::BOOL).unwrap();
    assert_eq!(view.read_range::<bool>(0..2).unwrap(), [true, false]);
    assert_eq!(view.read::<bool>().unwrap_err().code(), Code::DataLoss);
    assert!(view.read_into(&mut [false; 4]).is_err());
    // SAFETY: nothing writes the tensor.
    assert!(unsafe { view.map::<bool>() }.is_err());
}

#[test]
fn scalars_and_empty_tensors() {
    let scalar = cpu().buffer_view(&[], &[7u64]).unwrap();
    assert!(scalar.shape().is_empty());
    assert_eq!(scalar.read::<u64>().unwrap(), [7]);
    let empty = cpu().buffer_view(&[0, 4], &[0f32; 0]).unwrap();
    assert!(empty.is_empty());
    assert!(empty.read::<f32>().unwrap().is_empty());
    // SAFETY: nothing writes the tensor.
    assert_eq!(unsafe { empty.map::<f32>() }.unwrap().len(), 0);
}

#[test]
fn buffers_are_written_filled_and_copied_in_part() {
    for uri in ["local-task", "local-sync"] {
        let device = device(uri);
        let mut buffer = Buffer::allocate_in(&device, 256, Memory::Host).unwrap();
        buffer.fill(0..256, 0u8).unwrap();
        buffer.fill(4..12, 0x0102_0304u32).unwrap();
        buffer.write(100, &[9u8, 8, 7]).unwrap();
        let mut other = Buffer::allocate(&device, 256).unwrap();
        other.fill(0..256, 0xFFu8).unwrap();
        other.copy_from(0, &buffer, 2, 128).unwrap();
        let mut bytes = [0u8; 256];
        other.read_into(0, &mut bytes).unwrap();
        assert_eq!(bytes[..12], [0, 0, 4, 3, 2, 1, 4, 3, 2, 1, 0, 0]);
        assert_eq!(bytes[97..102], [0, 9, 8, 7, 0]);
        assert!(bytes[128..].iter().all(|&b| b == 0xFF));

        let part = buffer.subspan(96..112).unwrap();
        assert_eq!(part.byte_len(), 16);
        // SAFETY: nobody reads or writes it meanwhile.
        unsafe { part.write_unchecked(0, &[5u8]).unwrap() };
        buffer.read_into(96, &mut bytes[..5]).unwrap();
        assert_eq!(bytes[..5], [5, 0, 0, 0, 9]);
    }
}

#[test]
fn ranges_outside_of_a_buffer_are_errors() {
    let device = cpu();
    let mut buffer = Buffer::allocate(&device, 64).unwrap();
    let other = Buffer::allocate(&device, 64).unwrap();
    let out_of_range = [
        buffer.write(60, &[0u8; 5]),
        buffer.write(usize::MAX, &[0u8; 5]),
        buffer.read_into(64, &mut [0]),
        buffer.fill(60..68, 0u8),
        buffer.copy_from(0, &other, 1, 64),
        buffer.copy_from(1, &other, 0, 64),
        buffer.subspan(1..66).map(drop),
        buffer.view(&[17], ElementType::F32).map(drop),
    ];
    for result in out_of_range {
        assert_eq!(result.unwrap_err().code(), Code::OutOfRange);
    }
    assert!(buffer.fill(0..6, 0u32).is_err());
    assert!(buffer.fill(0..24, 0u64).is_err());
    // SAFETY: nobody reads or writes it meanwhile.
    let overlapping = unsafe { buffer.copy_from_unchecked(0, &buffer, 8, 16) };
    assert_eq!(overlapping.unwrap_err().code(), Code::InvalidArgument);
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let backwards = [
        buffer.fill(8..4, 0u32),
        buffer.subspan(8..4).map(drop),
        cpu().buffer_view(&[4], &[1f32; 4]).unwrap().read_range::<f32>(3..1).map(drop),
    ];
    for result in backwards {
        let error = result.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains("ends before it starts"), "{error}");
    }
    assert!(buffer.copy_from(0, &Buffer::allocate(&cpu(), 64).unwrap(), 61, 4).is_err());
    assert!(buffer.view(&[usize::MAX, 16], ElementType::F32).is_err());
}

#[test]
fn views_of_a_prefix_share_the_memory() {
    let mut buffer = Buffer::allocate(&cpu(), 4096).unwrap();
    buffer.fill(0..4096, 0u8).unwrap();
    buffer.write(0, &[1f32; 8]).unwrap();
    buffer.write(64, &[7i32; 4]).unwrap();
    let small = buffer.view(&[2, 4], ElementType::F32).unwrap();
    let large = buffer.view(&[32, 32], ElementType::F32).unwrap();
    assert_eq!(small.read::<f32>().unwrap(), [1.; 8]);
    assert_eq!(large.read_range::<f32>(6..10).unwrap(), [1., 1., 0., 0.]);
    let second = BufferView::from_buffer(&buffer, 64, &[4], ElementType::I32).unwrap();
    assert_eq!(second.read::<i32>().unwrap(), [7; 4]);
    assert_eq!(
        buffer.view(&[17], ElementType::I32).unwrap().read_range::<i32>(16..17).unwrap(),
        [7]
    );
    let error = BufferView::from_buffer(&buffer, 4, &[4], ElementType::I32).unwrap_err();
    assert!(error.message().contains("aligned"), "{error}");
}

#[test]
fn device_memory_that_does_not_exist_is_exhaustion() {
    let error = Buffer::allocate(&cpu(), 1 << 60).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("1152921504606846976 bytes"), "{error}");
    // A block that is kept is looked at for each of them.
    drop(Buffer::allocate(&cpu(), 8 << 20).unwrap());
    for bytes in [usize::MAX, usize::MAX - 100, 1 << 63, isize::MAX as usize] {
        for uri in ["local-task", "local-sync"] {
            let error = Buffer::allocate(&device(uri), bytes).unwrap_err();
            assert_eq!(error.code(), Code::ResourceExhausted, "{bytes}: {error}");
        }
    }
    assert_eq!(Upload::new(&cpu(), usize::MAX).unwrap_err().code(), Code::ResourceExhausted);
}

#[test]
fn uploads_are_filled_in_place() {
    for uri in ["local-task", "local-sync"] {
        for bytes in [0, 1, 1000, 5 << 20] {
            let device = device(uri);
            let mut upload = Upload::new(&device, bytes).unwrap();
            assert_eq!(upload.len(), bytes);
            assert!(upload.iter().all(|&b| b == 0));
            let (left, right) = upload.split_at_mut(bytes / 2);
            std::thread::scope(|scope| {
                scope.spawn(|| left.fill(1));
                scope.spawn(|| right.fill(2));
            });
            let address = upload.as_ptr();
            let mut buffer = upload.finish().unwrap();
            assert_eq!(buffer.byte_len(), bytes);
            let mut out = vec![0; bytes];
            buffer.read_into(0, &mut out).unwrap();
            assert!(out[..bytes / 2].iter().all(|&b| b == 1));
            assert!(out[bytes / 2..].iter().all(|&b| b == 2));
            if bytes > 0 {
                assert_eq!(buffer.host_ptr().unwrap().as_ptr().cast_const(), address);
                buffer.write(bytes - 1, &[3u8]).unwrap();
            }
            if bytes >= 2 << 20 {
                assert_eq!(address as usize % (2 << 20), 0);
            }
        }
    }
}
