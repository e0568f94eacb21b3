// `x * 2 + 1` of 8 numbers in 4 workgroups, each of which calls the kernel `scale`.
//
// A graph like any other, in which a dispatch goes to a function that was not compiled with it.
// Workgroups are told nothing but the constants (i32), where the tensors are, and which of
// how many they are: to have a part of the tensors each is the kernel's to do.
module @gate {
  func.func @scale(%x: tensor<8xf32>) -> tensor<8xf32> {
    %workgroups = arith.constant 4 : index
    %factor = arith.constant 2 : i32
    %y = hal.dispatch.extern "scale"[%workgroups](%factor, %x)
      : (i32, tensor<8xf32>) -> tensor<8xf32>
      count(%device: !hal.device, %x_count: index) -> (index, index, index) {
        %one = arith.constant 1 : index
        hal.return %x_count, %one, %one : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [
        #hal.pipeline.binding<storage_buffer, ReadOnly>,
        #hal.pipeline.binding<storage_buffer>
      ]>)
      objects({#hal.executable.target<"vulkan-spirv", "kernels:scale"> ordinal(0) = [
        #hal.executable.object<{path = "scale", data = dense<0> : vector<4xi8>}>
      ]})
    return %y : tensor<8xf32>
  }
}
