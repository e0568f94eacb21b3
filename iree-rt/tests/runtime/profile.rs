//! Profiles of devices: what they say, and the file that they leave.

use std::path::{Path, PathBuf};

use iree_rt::{Code, CompileOptions, Compiler, Device, DeviceOptions, Instance, Module, Session};

const SOURCE: &str = "
module @sums {
  func.func @twice(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
    %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
        : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %1 = stablehlo.dot_general %0, %a, contracting_dims = [1] x [0]
        : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    return %1 : tensor<64x64xf32>
  }
}";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn profiled(uri: &str, path: &Path) -> iree_rt::Result<Device> {
    let options = DeviceOptions::default().profile(path.to_owned());
    Instance::get()?.device_with(uri, &options)
}

fn session(device: &Device) -> Session {
    let vmfb = Compiler::find().unwrap().compile(SOURCE, &CompileOptions::default()).unwrap();
    // SAFETY: compiled just now for the CPU of this machine.
    let module = unsafe { Module::from_bytes(&vmfb) }.unwrap();
    Session::builder(device).module(module).build().unwrap()
}

fn run(session: &mut Session, device: &Device) {
    let function = session.function("sums.twice").unwrap();
    let a = device.buffer_view(&[64, 64], &[0.125f32; 64 * 64]).unwrap();
    let out = session.call(&function, [&a]).unwrap();
    assert_eq!(out.view(0).unwrap().read::<f32>().unwrap()[0], 8.0);
}

#[test]
fn every_dispatch_is_counted_once_and_the_file_is_whole() {
    for uri in ["local-task", "local-sync"] {
        let path = file(&format!("{uri}.ireeprof"));
        let device = profiled(uri, &path).unwrap();
        let mut session = session(&device);
        device.take_profile().unwrap();

        for _ in 0..3 {
            run(&mut session, &device);
        }
        let profile = device.take_profile().unwrap();
        assert_eq!(profile.dropped, 0);
        let calls: u64 = profile.dispatches.iter().map(|cost| cost.calls).sum();
        assert_eq!(calls, 6, "{uri}: {profile:?}");
        for cost in &profile.dispatches {
            assert!(cost.name.contains("twice_dispatch_"), "{uri}: {cost:?}");
            assert!(!cost.elapsed.is_zero(), "{uri}: {cost:?}");
        }
        let elapsed = profile.dispatches.iter().map(|cost| cost.elapsed);
        assert!(elapsed.is_sorted_by(|a, b| a >= b), "{uri}: {profile:?}");

        let nothing = device.take_profile().unwrap();
        assert!(nothing.dispatches.is_empty() && nothing.submitted.is_zero(), "{nothing:?}");

        run(&mut session, &device);
        drop((session, device));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..4], *b"IRPF");
        let length = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        assert_eq!(length, bytes.len() as u64, "{uri}: the header says how long the file is");
        // From record to record: a begin, chunks, an end.
        let (mut at, mut kinds) = (24, Vec::new());
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            kinds.push(u16::from_le_bytes(bytes[at + 100..at + 102].try_into().unwrap()));
            at += length as usize;
        }
        assert_eq!(at, bytes.len());
        assert_eq!((kinds.first(), kinds.last()), (Some(&1), Some(&3)), "{kinds:?}");
        let chunks = &kinds[1..kinds.len() - 1];
        assert!(chunks.len() > 2 && chunks.iter().all(|&kind| kind == 2), "{kinds:?}");
    }
}

#[test]
fn a_device_records_only_when_asked_to() {
    let device = Instance::get().unwrap().device("local-sync").unwrap();
    let error = device.take_profile().unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("DeviceOptions::profile"), "{error}");
}

#[test]
fn a_file_that_cannot_be_made_is_an_error() {
    let error = profiled("local-task", &file("no/such/folder/x.ireeprof")).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("x.ireeprof"), "{error}");
}

#[test]
fn sessions_side_by_side_share_a_recording() {
    let device = profiled("local-task", &file("shared.ireeprof")).unwrap();
    let mut sessions = [session(&device), session(&device)];
    let calls = || {
        let profile = device.take_profile().unwrap();
        assert_eq!(profile.dropped, 0);
        profile.dispatches.iter().map(|cost| cost.calls).sum::<u64>()
    };
    let seen = std::thread::scope(|scope| {
        for session in &mut sessions {
            let device = &device;
            scope.spawn(move || (0..20).for_each(|_| run(session, device)));
        }
        // Looking on meanwhile is allowed.
        (0..10).map(|_| calls()).sum::<u64>()
    });
    assert_eq!(seen + calls(), 2 * 20 * 2);
}
