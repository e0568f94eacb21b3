//! What safe code cannot do, as programs that do not compile, each for the reason that its error
//! code says (which rustdoc compares where it may: `RUSTC_BOOTSTRAP=1 cargo test --doc`).
//!
//! What can only be refused when it happens is in the tests: `calls` and `asynchronous_lifetimes`
//! (dropped in any order), `buffers` and `calls` (wrong types), `mapping` (aliased memory),
//! `threads`, `native` (re-entrancy).

/// A tensor is dropped while it is mapped.
///
/// ```compile_fail,E0505
/// fn f(mut tensor: iree_rt::BufferView) -> iree_rt::Result<f32> {
///     let map = tensor.map_mut::<f32>()?;
///     drop(tensor);
///     Ok(map[0])
/// }
/// ```
struct DroppedWhileMapped;

/// A tensor is mapped for writing twice.
///
/// ```compile_fail,E0499
/// fn f(mut tensor: iree_rt::BufferView) -> iree_rt::Result<()> {
///     let (mut one, mut other) = (tensor.map_mut::<f32>()?, tensor.map_mut::<f32>()?);
///     std::mem::swap(&mut one[0], &mut other[0]);
///     Ok(())
/// }
/// ```
struct MappedTwice;

/// A tensor is cloned, filled or passed on while it is mapped for writing.
///
/// ```compile_fail,E0502
/// fn f(mut tensor: iree_rt::BufferView) -> iree_rt::Result<f32> {
///     let map = tensor.map_mut::<f32>()?;
///     let mut other = tensor.clone();
///     other.fill(1f32)?;
///     Ok(map[0])
/// }
/// ```
struct ClonedWhileMapped;

/// Two threads write to one buffer.
///
/// ```compile_fail,E0596
/// fn f(buffer: &iree_rt::Buffer) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| buffer.write(0, &[1u8; 64]));
///         scope.spawn(|| buffer.fill(0..64, 2u8));
///     });
/// }
/// ```
struct WrittenOnTwoThreads;

/// The slice of a mapping outlives its guard.
///
/// ```compile_fail,E0515
/// fn f(mut tensor: iree_rt::BufferView) -> iree_rt::Result<&'static [f32]> {
///     Ok(&tensor.map_mut::<f32>()?[..])
/// }
/// ```
struct SliceOutlivesMapping;

/// Two threads use one session.
///
/// ```compile_fail,E0277
/// fn f(session: &iree_rt::Session) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| session.canceller());
///     });
/// }
/// ```
struct SessionOnTwoThreads;

/// Two threads call into one session.
///
/// ```compile_fail,E0499
/// fn f(mut session: iree_rt::Session, f: &iree_rt::Function) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| session.call(f, ()).map(drop));
///         scope.spawn(|| session.call(f, ()).map(drop));
///     });
/// }
/// ```
struct CallsOnTwoThreads;

/// A native function calls into the session that it is called from.
///
/// ```compile_fail,E0597
/// fn f(mut session: iree_rt::Session, f: &'static iree_rt::Function) -> iree_rt::NativeModule {
///     let borrowed = &mut session;
///     iree_rt::NativeModule::new("host")
///         .function("again", move |()| borrowed.call(f, ()).map(|_| 0))
/// }
/// ```
struct NativeFunctionBorrowsSession;

/// A native function takes something to the session's thread that may not go there.
///
/// ```compile_fail,E0277
/// let count = std::rc::Rc::new(std::cell::Cell::new(0));
/// let host = iree_rt::NativeModule::new("host").function("count", move |()| {
///     count.set(count.get() + 1);
///     Ok(count.get())
/// });
/// ```
struct NativeStateOfOneThread;

/// A kernel, which several workers call at a time, changes what it captures without a lock.
///
/// ```compile_fail,E0525
/// let mut calls = 0;
/// let run = move |_: &iree_rt::KernelArguments<'_>| {
///     calls += 1;
///     Ok(())
/// };
/// let kernel = iree_rt::Kernel::new(0, 0, run);
/// ```
struct KernelWithoutLock;

/// A kernel hands the arguments of a call to a thread.
///
/// ```compile_fail,E0277
/// let run = |arguments: &iree_rt::KernelArguments<'_>| {
///     std::thread::scope(|scope| {
///         scope.spawn(|| arguments.pointer::<f32>(0).is_null());
///     });
///     Ok(())
/// };
/// let kernel = iree_rt::Kernel::new(1, 0, run);
/// ```
struct KernelSharesArguments;

/// A kernel keeps the constants of a call.
///
/// ```compile_fail,E0521
/// use iree_rt::{Kernel, KernelArguments};
///
/// let kept = std::sync::Mutex::new(Vec::<&'static [u32]>::new());
/// let greedy = Kernel::new(1, 2, move |arguments: &KernelArguments<'_>| {
///     kept.lock().unwrap().push(arguments.constants());
///     Ok(())
/// });
/// ```
struct KernelKeepsConstants;

/// Memory that is imported is not the buffer's to keep.
///
/// ```compile_fail,E0597
/// fn f(device: &iree_rt::Device) -> iree_rt::Result<iree_rt::Buffer> {
///     let bytes = vec![0; 4096];
///     iree_rt::Buffer::import(device, &bytes[..])
/// }
/// ```
struct ImportedMemoryOfAnother;

/// Host memory is imported as if it were known to be valid.
///
/// ```compile_fail,E0133
/// fn f(device: &iree_rt::Device, start: std::ptr::NonNull<u8>) -> iree_rt::Result<iree_rt::Buffer> {
///     iree_rt::Buffer::import_host(device, start, 64, ())
/// }
/// ```
struct ImportedAddress;

/// Machine code is loaded as if it were data.
///
/// ```compile_fail,E0133
/// let module = iree_rt::Module::from_file("downloaded.vmfb");
/// ```
struct ModuleFromAnywhere;

/// An upload is filled after it became a buffer.
///
/// ```compile_fail,E0382
/// fn f(mut upload: iree_rt::Upload) -> iree_rt::Result<iree_rt::Buffer> {
///     let buffer = upload.finish()?;
///     upload[0] = 1;
///     Ok(buffer)
/// }
/// ```
struct UploadAfterFinish;

/// A fence is signalled twice.
///
/// ```compile_fail,E0382
/// fn f(signal: iree_rt::Signal) -> iree_rt::Result<()> {
///     signal.signal()?;
///     signal.signal()
/// }
/// ```
struct SignalledTwice;

/// A function that was looked up with types is called with others.
///
/// ```compile_fail,E0308
/// use iree_rt::{Session, Tensor, TypedFunction};
///
/// type Negate = TypedFunction<(Tensor<f32>,), Tensor<f32>>;
/// fn f(session: &mut Session, negate: &Negate, x: Tensor<i32>) -> iree_rt::Result<Tensor<f32>> {
///     negate.call(session, (x,))
/// }
/// ```
struct TypedCallWithOthers;

/// Bytes become values that they may not be.
///
/// ```compile_fail,E0277
/// fn f(tensor: &iree_rt::BufferView) -> iree_rt::Result<Vec<std::num::NonZeroU8>> {
///     tensor.read()
/// }
/// ```
struct AnyTypeOfElement;

/// Parameters are asked for by several threads; their provider has no lock.
///
/// ```compile_fail,E0277
/// struct Counting(std::cell::Cell<usize>);
///
/// impl iree_rt::ParameterProvider for Counting {
///     fn supports(&self, _: &str) -> bool {
///         true
///     }
///     fn load(&self, _: &str, _: &str) -> iree_rt::Result<Vec<u8>> {
///         Ok(vec![0; self.0.replace(1)])
///     }
/// }
/// ```
struct ProviderWithoutLock;
