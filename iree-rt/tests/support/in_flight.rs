//! What the tests of calls in flight share: a program that is called so, and ways to wait.

use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use iree_rt::{BufferView, CompileOptions, Device, Fence, Pending, Session, Signal, Value};

use super::{compile, device, module};

/// Long enough for a machine under load, and no longer than a test may take.
pub const LONG: Duration = Duration::from_secs(300);

pub const SHORT: Duration = Duration::from_millis(20);

pub const ASYNC: &str = r#"
module @later {
  func.func @double(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @scaled(%a: tensor<2xf32>, %n: i32) -> (tensor<2xf32>, tensor<i32>) {
    %0 = stablehlo.negate %a : tensor<2xf32>
    %1 = tensor.from_elements %n : tensor<i32>
    %2 = stablehlo.add %1, %1 : tensor<i32>
    return %0, %2 : tensor<2xf32>, tensor<i32>
  }
  func.func @nothing() { return }
  func.func @until(%a: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<4xf32>
     cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %y = stablehlo.add %x, %x : tensor<4xf32>
      stablehlo.return %j, %y : tensor<i32>, tensor<4xf32>
    }
    return %r#1 : tensor<4xf32>
  }
}
"#;

pub fn options() -> CompileOptions {
    CompileOptions::default().flag("--iree-execution-model=async-external")
}

pub fn later() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| compile(ASYNC, &options()))
}

pub fn session_on(device: &Device) -> Session {
    Session::builder(device).module(module(later())).build().unwrap()
}

pub fn ones(device: &Device) -> Value {
    device.buffer_view(&[4], &[1f32; 4]).unwrap().into()
}

pub fn floats(view: &BufferView) -> Vec<f32> {
    view.read().unwrap()
}

/// Fails the test when `run` does not end.
pub fn ends<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    let runner = thread::spawn(move || {
        let result = run();
        let _ = done.send(());
        result
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(LONG) {
        panic!("hangs");
    }
    runner.join().unwrap()
}

/// A future of `double` waiting for a fence, with its session gone.
pub fn orphan() -> (Signal, Pending) {
    let device = device("local-task");
    let mut session = session_on(&device);
    let double = session.function("later.double").unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let pending = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap();
    (go, pending)
}

/// Runs something once when it is woken, on the thread that wakes.
pub struct OnWake<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> OnWake<F> {
    pub fn waker(run: F) -> Waker {
        Arc::new(Self(Mutex::new(Some(run)))).into()
    }
}

impl<F: FnOnce() + Send + 'static> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        let run = self.0.lock().unwrap().take();
        run.unwrap()();
    }
}
