//! Devices of Vulkan: lavapipe is one that needs no GPU (Debian: `apt install mesa-vulkan-drivers`).
//! Where there is none, the tests that need one say SKIPPED and why.

mod support;

use std::task::{Context, Waker};
use std::time::Duration;

use iree_rt::vulkan::{self, Gpu};
use iree_rt::{
    Buffer, Code, CompileOptions, Device, ElementType, Error, Fence, Instance, Memory, Session,
    Staging,
};
use support::in_flight::{ASYNC, LONG, ends, floats};
use support::{compile, module};

/// Why there is no device of Vulkan here; `None` where there is one.
fn why_not() -> Option<Error> {
    if let Err(error) = vulkan::available() {
        let drivers = Instance::get().unwrap().drivers().unwrap();
        let (code, advice) = match drivers.iter().any(|driver| driver.name == "vulkan") {
            false => (Code::NotFound, "`cargo xtask fetch-iree --vulkan`"),
            true if !cfg!(feature = "vulkan") => (Code::Unimplemented, "feature `vulkan`"),
            true => (Code::Unavailable, "mesa-vulkan-drivers"),
        };
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(advice), "{error}");
        return Some(error);
    }
    Gpu::at("vulkan").err()
}

/// The first device, or nothing, which is said.
fn gpu() -> Option<(Gpu, Device)> {
    if let Some(error) = why_not() {
        println!("SKIPPED: {error}");
        return None;
    }
    let gpu = Gpu::at("vulkan").unwrap().unwrap();
    let device = Instance::get().unwrap().device(&gpu.uri()).unwrap();
    Some((gpu, device))
}

/// `source`, compiled for the device as it describes itself, with functions that wait and signal.
fn session(gpu: &Gpu, device: &Device, source: &str) -> Session {
    let attributes = format!("attributes {{hal.device.targets = [{}]}} {{", gpu.target());
    let source = source.replacen('{', &attributes, 1);
    let options = CompileOptions::empty().flag("--iree-execution-model=async-external");
    Session::builder(device).module(module(&compile(source, &options))).build().unwrap()
}

#[test]
fn without_a_device_one_sentence_says_so() {
    let Some(expected) = why_not() else { return };
    let message = expected.message();
    assert!(!message.contains(['\n', '!']) && !message.contains(". "), "{message}");
    assert!(!message.contains(".c:"), "{message}");
    if cfg!(feature = "vulkan") {
        let error = Instance::get().unwrap().device("vulkan").unwrap_err();
        assert_eq!(error.code(), expected.code(), "{error}");
    }
}

#[test]
fn devices_are_listed_as_iree_lists_them() {
    let Some((first, device)) = gpu() else { return };
    let drivers = Instance::get().unwrap().drivers().unwrap();
    let driver = drivers.iter().find(|driver| driver.name == "vulkan").unwrap();
    let listed = driver.devices().unwrap();
    let all = Gpu::all().unwrap();
    assert_eq!(listed.len(), all.len());
    for (gpu, info) in all.iter().zip(&listed) {
        println!("{gpu:?}");
        assert!(gpu.uuid == info.path || !gpu.lacking.is_empty(), "{gpu:?}: {info:?}");
        assert!(info.name.starts_with(&gpu.name), "{gpu:?}: {info:?}");
    }
    let (least, usual, most) = first.subgroup_sizes;
    assert!(least <= usual && usual <= most && usual.is_power_of_two(), "{first:?}");
    assert!(first.api_version >= (1, 3, 0) && first.total_bytes > 0, "{first:?}");
    assert!(device.is_vulkan() && !device.is_local() && !device.is_cuda());
    assert_eq!(Gpu::of(&device).unwrap(), Some(first.clone()));
    let by_number = format!("vulkan://{}", first.ordinal);
    assert_eq!(Gpu::at(&by_number).unwrap(), Some(first));
    Instance::get().unwrap().device(&by_number).unwrap();
}

#[test]
fn a_device_that_is_not_there_is_one_sentence() {
    let Some(_) = gpu() else { return };
    let instance = Instance::get().unwrap();
    for uri in ["vulkan://99", "vulkan://GPU-00000000000000000000000000000000", "vulkan://x"] {
        let error = instance.device(uri).unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        assert!(error.message().contains(uri) && !error.message().contains('\n'), "{error}");
    }
}

#[test]
fn more_than_there_is_is_refused() {
    let Some((gpu, device)) = gpu() else { return };
    device.check_fits(1 << 20).unwrap();
    let error = device.check_fits(1 << 50).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains(&gpu.name), "{error}");
    let error = Buffer::allocate(&device, 1 << 46).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
}

#[test]
fn memory_of_the_device_and_of_the_host() {
    let Some((_, device)) = gpu() else { return };
    let numbers: Vec<i32> = (0..1 << 16).collect();
    let bytes = size_of_val(&numbers[..]);
    let mut of_device = Buffer::allocate(&device, bytes).unwrap();
    of_device.write(0, &numbers).unwrap();
    let mut of_host = Buffer::allocate_in(&device, bytes, Memory::Host).unwrap();
    of_host.copy_from(0, &of_device, 0, bytes).unwrap();
    let mut back = vec![0i32; numbers.len()];
    of_host.read_into(0, iree_rt::bytemuck::cast_slice_mut(&mut back)).unwrap();
    assert_eq!(back, numbers);
    of_host.fill(0..16, 7i32).unwrap();
    of_device.copy_from(bytes - 16, &of_host, 0, 16).unwrap();
    let view = of_device.view(&[numbers.len()], ElementType::I32).unwrap();
    let end = view.read_range::<i32>(numbers.len() - 5..numbers.len()).unwrap();
    assert_eq!(end, [numbers[numbers.len() - 5], 7, 7, 7, 7]);

    // Through pieces that the device copies while the next is filled.
    let mut staging = Staging::new(&device, 1 << 20).unwrap();
    for (at, piece) in (0u8..).zip([100usize, 1000, (1 << 20) - 1100]) {
        staging.next(piece).unwrap().fill(at);
    }
    let staged = staging.finish().unwrap();
    let mut back = vec![9u8; 1 << 20];
    staged.read_into(0, &mut back).unwrap();
    assert!(back[..100].iter().all(|&it| it == 0) && back[100..1100].iter().all(|&it| it == 1));
    assert!(back[1100..].iter().all(|&it| it == 2));
}

/// In a thread that is neither the one that polls nor any of the device's, which tell when the copy is done.
#[test]
fn transfers_are_futures() {
    let Some((_, device)) = gpu() else { return };
    let (done, wait) = std::sync::mpsc::channel();
    let transfers = async move {
        let tensor = device.buffer_view(&[4], &[1i32, 2, 3, 4]).unwrap();
        let tensor = tensor.write_async(1, vec![-2, -3]).await.unwrap();
        assert_eq!(tensor.read_async::<i32>().await.unwrap(), [1, -2, -3, 4]);
        let buffer = Buffer::allocate(&device, 1 << 20).unwrap();
        let buffer = buffer.write_async(4, vec![7u8; 1000]).await.unwrap();
        assert_eq!(buffer.read_async(4..1004).await.unwrap(), [7; 1000]);
        // The thread that copies may be the last to have buffer and device.
        let mut context = Context::from_waker(Waker::noop());
        let mut reading = Box::pin(buffer.read_async(0..1 << 20));
        let _ = reading.as_mut().poll(&mut context);
        drop((reading, buffer, tensor, device));
        done.send(()).unwrap();
    };
    let thread = std::thread::spawn(|| pollster::block_on(transfers));
    wait.recv_timeout(Duration::from_secs(60)).expect("a transfer ends");
    thread.join().unwrap();
}

/// Bytes that begin where every device takes them.
struct Page(Vec<u8>);

const PAGE: usize = 1 << 16;

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        let start = self.0.as_ptr().align_offset(PAGE);
        &self.0[start..start + PAGE]
    }
}

#[test]
fn memory_of_the_host_is_imported_or_refused() {
    let Some((_, device)) = gpu() else { return };
    let page = Page((0..2 * PAGE).map(|at| at as u8).collect());
    let expected = page.as_ref().to_vec();
    match Buffer::import(&device, page) {
        Ok(buffer) => {
            println!("imported");
            let mut copy = Buffer::allocate(&device, PAGE).unwrap();
            copy.copy_from(0, &buffer, 0, PAGE).unwrap();
            let mut back = vec![0; PAGE];
            copy.read_into(0, &mut back).unwrap();
            assert_eq!(back, expected);
        }
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn calls_in_flight_follow_each_other() {
    let Some((gpu, device)) = gpu() else { return };
    ends(move || {
        let mut session = session(&gpu, &device, ASYNC);
        let double = session.function("later.double").unwrap();
        let (go, ready) = Fence::new(&device).unwrap();
        let first = device.buffer_view(&[4], &[1f32, 2., 3., 4.]).unwrap();
        let mut pending = vec![session.call_async(&double, [first], Some(&ready)).unwrap()];
        for _ in 0..15 {
            let last = pending.last().unwrap();
            let (early, fence) = (last.early(0).unwrap(), last.fence().clone());
            pending.push(session.call_async(&double, [early], Some(&fence)).unwrap());
        }
        assert!(!pending[0].fence().is_reached().unwrap());
        go.signal().unwrap();
        let mut last = pending.pop().unwrap();
        let results = last.wait(Some(LONG)).unwrap();
        let by = f32::from(u16::MAX) + 1.0;
        assert_eq!(floats(&results.view(0).unwrap()), [by, 2. * by, 3. * by, 4. * by]);
        for call in &mut pending {
            call.wait(Some(LONG)).unwrap();
        }
    });
}

#[test]
fn what_fails_fails_what_waits_for_it() {
    let Some((gpu, device)) = gpu() else { return };
    ends(move || {
        let mut session = session(&gpu, &device, ASYNC);
        let double = session.function("later.double").unwrap();
        let (go, ready) = Fence::new(&device).unwrap();
        let view = device.buffer_view(&[4], &[1f32; 4]).unwrap();
        let mut pending = session.call_async(&double, [view], Some(&ready)).unwrap();
        go.fail(&Error::new(Code::Aborted, "not today"));
        let error = pending.wait(Some(LONG)).unwrap_err();
        assert!(error.message().contains("not today"), "{error}");
        // The device goes on.
        let view = device.buffer_view(&[4], &[1f32; 4]).unwrap();
        let mut pending = session.call_async(&double, [view], None).unwrap();
        assert_eq!(floats(&pending.wait(Some(LONG)).unwrap().view(0).unwrap()), [2.0; 4]);
    });
}

/// Work that a module gives to two queues, each of which waits for what the other makes, while other
/// calls of it are in flight. A device that has one queue takes both for it. Runtimes without the mend
/// `vulkan-queue-waits` lost the device now and then.
#[test]
fn queues_wait_for_each_other() {
    const QUEUES: &str = r"
module @queues {
  util.global private @device = TARGET
  func.func @exchange(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %first = flow.tensor.transfer %x : tensor<4xf32> to #hal.device.affinity<@device, [0]>
    %second = flow.tensor.transfer %x : tensor<4xf32> to #hal.device.affinity<@device, [1]>
    %a = stablehlo.add %first, %first : tensor<4xf32>
    %b = stablehlo.multiply %second, %second : tensor<4xf32>
    %there = flow.tensor.transfer %a : tensor<4xf32> to #hal.device.affinity<@device, [1]>
    %back = flow.tensor.transfer %b : tensor<4xf32> to #hal.device.affinity<@device, [0]>
    %c = stablehlo.add %a, %back : tensor<4xf32>
    %d = stablehlo.multiply %b, %there : tensor<4xf32>
    return %c, %d : tensor<4xf32>, tensor<4xf32>
  }
}
";
    let Some((gpu, device)) = gpu() else { return };
    ends(move || {
        let options = CompileOptions::empty().flag("--iree-execution-model=async-external");
        let source = QUEUES.replace("TARGET", &gpu.target().to_string());
        let program = module(&compile(&source, &options));
        let mut session = Session::builder(&device).module(program).build().unwrap();
        let exchange = session.function("queues.exchange").unwrap();
        let mut pending = Vec::new();
        for round in 1u8..=16 {
            let view = device.buffer_view(&[4], &[f32::from(round); 4]).unwrap();
            pending.push(session.call_async(&exchange, [view], None).unwrap());
        }
        for (round, call) in (1u8..=16).map(f32::from).zip(&mut pending) {
            let results = call.wait(Some(LONG)).unwrap();
            let square = round * round;
            assert_eq!(floats(&results.view(0).unwrap()), [2.0 * round + square; 4]);
            assert_eq!(floats(&results.view(1).unwrap()), [square * 2.0 * round; 4]);
        }
    });
}

/// Sessions on threads of their own, on one device.
#[test]
fn threads_share_a_device() {
    let Some((gpu, device)) = gpu() else { return };
    ends(move || {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (gpu, device) = (&gpu, &device);
                scope.spawn(move || {
                    let mut session = session(gpu, device, ASYNC);
                    let double = session.function("later.double").unwrap();
                    for round in 0..8 {
                        let value = (thread * 100 + round) as f32;
                        let view = device.buffer_view(&[4], &[value; 4]).unwrap();
                        let mut pending = session.call_async(&double, [view], None).unwrap();
                        let results = pending.wait(Some(LONG)).unwrap();
                        assert_eq!(floats(&results.view(0).unwrap()), [2.0 * value; 4]);
                    }
                });
            }
        });
    });
}

#[test]
fn a_wait_ends_in_time() {
    let Some((_, device)) = gpu() else { return };
    let (go, ready) = Fence::new(&device).unwrap();
    let error = ready.wait(Some(Duration::from_millis(20))).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    go.signal().unwrap();
    ready.wait(Some(LONG)).unwrap();
}
