//! Several devices: groups, sessions on them, copies between them.

use crate::support::{compile, device, kinds, module};
use iree_rt::{
    Buffer, Code, CompileOptions, Device, DeviceGroup, DeviceOptions, ElementType, Fence, Instance,
    Session,
};

/// `@f(a on left, b on right) -> (2 a on left, 2 a * b on right)`.
const SPLIT: &str = "
module @split {
  func.func @f(%a: tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@left>},
               %b: tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@right>})
      -> (tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@left>},
          tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@right>}) {
    %double = stablehlo.add %a, %a : tensor<4xf32>
    %there = flow.tensor.transfer %double : tensor<4xf32> to #hal.device.promise<@right>
    %product = stablehlo.multiply %there, %b : tensor<4xf32>
    return %double, %product : tensor<4xf32>, tensor<4xf32>
  }
}";

fn split(flags: &[&str]) -> Vec<u8> {
    let options = CompileOptions::empty()
        .flag("--iree-hal-target-device=left=local[0]")
        .flag("--iree-hal-target-device=right=local[1]")
        .flag("--iree-hal-local-target-device-backends=llvm-cpu")
        .flag("--iree-llvmcpu-target-cpu=host");
    compile(SPLIT, &flags.iter().fold(options, |options, &flag| options.flag(flag)))
}

fn group(uris: &[&str]) -> DeviceGroup {
    Instance::get().unwrap().device_group(uris).unwrap()
}

fn pair(group: &DeviceGroup) -> (Device, Device) {
    (group.device(0).unwrap(), group.device(1).unwrap())
}

#[test]
fn a_session_runs_on_several_devices() {
    let bytes = split(&[]);
    for uris in [["local-task", "local-task"], ["local-sync", "local-task"], ["local-sync"; 2]] {
        let group = group(&uris);
        let (left, right) = pair(&group);
        let mut session = Session::builder(&group).module(module(&bytes)).build().unwrap();
        let f = session.function("split.f").unwrap();
        let a = left.buffer_view(&[4], &[1f32, 2., 3., 4.]).unwrap();
        let b = right.buffer_view(&[4], &[10f32; 4]).unwrap();
        let (double, product) = {
            let out = session.call(&f, [&a, &b]).unwrap();
            (out.view(0).unwrap(), out.view(1).unwrap())
        };
        assert_eq!(double.read::<f32>().unwrap(), [2., 4., 6., 8.]);
        assert_eq!(product.read::<f32>().unwrap(), [20., 40., 60., 80.]);
        assert_eq!(double.device(), &left);
        // Memory of `local-sync` does not say whose it is: any device of the CPU can read it.
        if uris[1] == "local-task" {
            assert_eq!(product.device(), &right);
            assert_eq!(product.buffer().device(), &right);
        }
        // Results outlive every handle.
        drop((session, group, left, right, a, b, double));
        assert_eq!(product.read::<f32>().unwrap(), [20., 40., 60., 80.]);
    }
}

#[test]
fn a_call_in_flight_uses_several_devices() {
    let bytes = split(&["--iree-execution-model=async-external"]);
    let group = group(&["local-task", "local-task"]);
    let (left, right) = pair(&group);
    let mut session = Session::builder(&group).module(module(&bytes)).build().unwrap();
    let f = session.function("split.f").unwrap();
    let a = left.buffer_view(&[4], &[1f32; 4]).unwrap();
    let b = right.buffer_view(&[4], &[3f32; 4]).unwrap();
    // A fence of either device will do.
    let (go, ready) = Fence::new(&right).unwrap();
    let pending = session.call_async(&f, [&a, &b], Some(&ready)).unwrap();
    assert!(!pending.fence().is_reached().unwrap());
    go.signal().unwrap();
    let out = pollster::block_on(pending).unwrap();
    assert_eq!(out.view(1).unwrap().read::<f32>().unwrap(), [6.; 4]);
}

#[test]
fn groups_know_their_devices() {
    let instance = Instance::get().unwrap();
    let one = DeviceOptions::default().threads(1);
    let devices = [("local-task", &one), ("local-sync", &DeviceOptions::default())];
    let group = instance.device_group_with(&devices).unwrap();
    let uris: Vec<_> = group.devices().map(|device| device.uri().to_owned()).collect();
    assert_eq!(uris, ["local-task", "local-sync"]);
    assert_eq!(group.device(0).unwrap().threads(), Some(1));
    assert_eq!(group.device(2).unwrap_err().code(), Code::OutOfRange);
    assert_eq!(group.device(1).unwrap().group().devices().len(), 2);
    assert_eq!(device("local-sync").group().devices().len(), 1);
    assert!(format!("{group:?}").contains("local-sync"));
    for bad in [&[][..], &["local-task", "vulcan"]] {
        assert!(instance.device_group(bad).is_err());
    }
    let many = vec!["local-sync"; 1000];
    assert_eq!(instance.device_group(&many).unwrap_err().code(), Code::ResourceExhausted);
}

#[test]
fn a_module_for_two_devices_needs_two() {
    let single = device("local-task");
    let built = Session::builder(&single).module(module(&split(&[]))).build();
    assert_eq!(built.unwrap_err().code(), Code::Incompatible);
    // One for a single device takes the first of several.
    let group = group(&["local-sync", "local-task"]);
    let (first, second) = pair(&group);
    let mut session = Session::builder(&second).module(module(kinds())).build().unwrap();
    assert_eq!(session.device(), &first);
    let add = session.function("kinds.add").unwrap();
    let a = second.buffer_view(&[4], &[1f32; 4]).unwrap();
    let out = session.call(&add, [&a, &a]).unwrap();
    assert_eq!(out.view(0).unwrap().read::<f32>().unwrap(), [2.; 4]);
    // But not what was opened separately.
    let stranger = device("local-task").buffer_view(&[4], &[1f32; 4]).unwrap();
    let error = session.call(&add, (&a, stranger)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("another device"), "{error}");
}

#[test]
fn a_tensor_that_comes_back_is_on_its_device() {
    let source = "module @same {
      func.func @same(%a: !hal.buffer_view) -> !hal.buffer_view { return %a : !hal.buffer_view }
    }";
    let bytes = compile(source, &CompileOptions::default());
    for uris in [["local-task", "local-sync"], ["local-sync", "local-task"]] {
        let group = group(&uris);
        let (_, right) = pair(&group);
        let mut session = Session::builder(&group).module(module(&bytes)).build().unwrap();
        let same = session.function("same.same").unwrap();
        let memory = memmap2::MmapMut::map_anon(64).unwrap().make_read_only().unwrap();
        let imported = Buffer::import(&right, memory).unwrap();
        let uploaded = iree_rt::Upload::new(&right, 64).unwrap().finish().unwrap();
        for buffer in [imported, uploaded, Buffer::allocate(&right, 64).unwrap()] {
            let view = buffer.view(&[16], ElementType::F32).unwrap();
            let back = session.call(&same, [&view]).unwrap().view(0).unwrap();
            assert_eq!(back.device(), &right, "{uris:?}");
        }
    }
}

#[test]
fn tensors_move_between_devices() {
    let group = group(&["local-task", "local-sync"]);
    let (left, right) = pair(&group);
    let elsewhere = device("local-task");
    let numbers: Vec<i64> = (0..1000).collect();
    let mut here = left.buffer_view(&[10, 100], &numbers).unwrap();
    for to in [&left, &right, &elsewhere] {
        let there = here.to_device(to).unwrap();
        assert_eq!(there.device(), to);
        assert_eq!((there.shape(), there.element_type()), (&[10, 100][..], ElementType::I64));
        assert_eq!(there.read::<i64>().unwrap(), numbers);
        here.write(0, &[-1i64]).unwrap();
        assert_eq!(there.read_range::<i64>(0..1).unwrap(), [0]);
        here.write(0, &[0i64]).unwrap();
    }
    let empty = left.buffer_view(&[0, 3], &[0f32; 0]).unwrap();
    assert_eq!(empty.to_device(&right).unwrap().shape(), [0, 3]);
    let (from, mut to) = (here.buffer(), Buffer::allocate(&right, 100).unwrap());
    to.fill(0..100, 7u8).unwrap();
    to.copy_from(10, &from, 8, 8).unwrap();
    let mut bytes = [0; 20];
    to.read_into(0, &mut bytes).unwrap();
    assert_eq!(bytes[..11], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1]);
    assert_eq!(bytes[11..], [0, 0, 0, 0, 0, 0, 0, 7, 7]);
    assert_eq!(to.copy_from(96, &from, 0, 8).unwrap_err().code(), Code::OutOfRange);
}

/// By another spelling IREE's registry would open them, with a race and without our options.
#[test]
fn devices_of_the_cpu_have_no_parameters() {
    let instance = Instance::get().unwrap();
    for driver in ["local-task", "local-sync"] {
        for rest in ["://?", "://?x=1", "://0"] {
            let uri = format!("{driver}{rest}");
            let error = instance.device(&uri).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{uri}: {error}");
        }
        instance.device(&format!("{driver}://")).unwrap();
    }
}
