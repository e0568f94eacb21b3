//! Memory of others as buffers, and buffers' memory for others.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{BOTH_CPU_DEVICES, device};
use iree_rt::buffer::ALIGNMENT;
use iree_rt::{Buffer, Code, ElementType, Memory};

/// Bytes at a chosen distance from an aligned address, which tell when they are gone.
struct Owner {
    bytes: Vec<u8>,
    start: usize,
    dropped: Arc<AtomicUsize>,
}

impl Owner {
    fn new(shift: usize, length: usize, dropped: &Arc<AtomicUsize>) -> Self {
        let bytes: Vec<u8> = (0..length + 2 * ALIGNMENT).map(|i| i as u8).collect();
        let start = bytes.as_ptr().align_offset(ALIGNMENT) + shift;
        Self { bytes, start, dropped: dropped.clone() }
    }
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + 128]
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn imported_memory_lives_as_long_as_its_last_view() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = || dropped.load(Ordering::SeqCst);
    let owner = Owner::new(0, 128, &dropped);
    let expected = owner.as_ref().to_vec();
    let address = owner.as_ref().as_ptr();
    let mut view = {
        let device = device("local-sync");
        let buffer = Buffer::import(&device, owner).unwrap();
        assert_eq!(buffer.host_ptr().unwrap().as_ptr().cast_const(), address);
        let part = buffer.subspan(64..128).unwrap();
        part.view(&[64], ElementType::I8).unwrap()
    };
    assert_eq!(count(), 0);
    assert_eq!(view.read::<u8>().unwrap(), expected[64..]);
    let error = view.write(0, &[1u8]).unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    drop(view);
    assert_eq!(count(), 1);

    let misaligned =
        Buffer::import(&device("local-sync"), Owner::new(4, 128, &dropped)).unwrap_err();
    assert_eq!(misaligned.code(), Code::InvalidArgument);
    assert!(misaligned.message().contains("64 bytes"), "{misaligned}");
    assert_eq!(count(), 2);
}

#[test]
fn memory_goes_out_and_comes_in_with_what_keeps_it() {
    for uri in BOTH_CPU_DEVICES {
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = || dropped.load(Ordering::SeqCst);
        for memory in [Memory::Host, Memory::Device] {
            let device = device(uri);
            let owner = Owner::new(0, 128, &dropped);
            let before = count();
            let address = NonNull::from(owner.as_ref()).cast::<u8>();
            // SAFETY: nobody else uses the owner's bytes, which moving it does not move.
            let buffer = unsafe {
                match memory {
                    Memory::Host => Buffer::import_host(&device, address, 128, owner),
                    _ => Buffer::import_device(&device, address.as_ptr() as u64, 128, owner),
                }
            }
            .unwrap();
            let mut buffer = buffer;
            buffer.write(0, &[9u8]).unwrap();
            let external = buffer.subspan(64..128).unwrap().export(memory).unwrap();
            drop((buffer, device));
            assert_eq!(count(), before);
            assert_eq!((external.memory(), external.byte_len()), (memory, 64));
            assert_eq!(external.address(), address.as_ptr() as u64 + 64);
            assert_eq!(external.as_ptr().is_some(), memory == Memory::Host);
            // SAFETY: kept alive by `external`.
            assert_eq!(unsafe { address.read() }, 9);
            // SAFETY: nobody reads or writes it meanwhile.
            unsafe { external.buffer().write_unchecked(0, &[8u8]).unwrap() };
            // SAFETY: as above.
            assert_eq!(unsafe { address.add(64).read() }, 8);
            let again = external.clone();
            drop(external);
            assert_eq!(count(), before);
            drop(again);
            assert_eq!(count(), before + 1);
        }
        let owner = Owner::new(4, 128, &dropped);
        let address = owner.as_ref().as_ptr() as u64;
        let before = count();
        // SAFETY: as above.
        let misaligned = unsafe { Buffer::import_device(&device(uri), address, 128, owner) };
        let misaligned = misaligned.unwrap_err();
        assert_eq!(misaligned.code(), Code::InvalidArgument, "{misaligned}");
        assert!(misaligned.message().contains("device memory"), "{misaligned}");
        assert_eq!(count(), before + 1);
    }
}

#[test]
fn an_owner_without_bytes_is_an_empty_buffer() {
    for uri in BOTH_CPU_DEVICES {
        let device = device(uri);
        let buffer = Buffer::import(&device, Vec::new()).unwrap();
        assert_eq!(buffer.byte_len(), 0);
        let view = buffer.view(&[0, 3], ElementType::F32).unwrap();
        assert_eq!(view.read::<f32>().unwrap(), [0f32; 0]);
        let start = NonNull::<u8>::dangling();
        // SAFETY: no bytes are used.
        let buffer = unsafe { Buffer::import_host(&device, start, 0, ()) }.unwrap();
        assert_eq!(buffer.byte_len(), 0);
    }
}

#[test]
fn an_owner_that_panics_when_dropped_does_no_harm() {
    struct Bomb(Vec<u8>, usize);
    impl AsRef<[u8]> for Bomb {
        fn as_ref(&self) -> &[u8] {
            &self.0[self.1..self.1 + 64]
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("bomb");
        }
    }
    let bytes = vec![0; 192];
    let start = bytes.as_ptr().align_offset(ALIGNMENT);
    drop(Buffer::import(&device("local-sync"), Bomb(bytes, start)).unwrap());
}
