// `x * 2 + 1` of 8 numbers in 4 workgroups of 2: each cuts out its part of `x` and of the result,
// and calls the kernel on them.
//
// `iree.abi.stub`, with import and export of the buffer views written out, matters: a function
// that calls a kernel is not inlined into the wrapper that IREE makes otherwise, which then copies
// all arguments. So does the `tensor.empty` inside the region: from outside, the result would be
// read, too.
module @gate {
  util.func public @scale(%x_view: !hal.buffer_view) -> !hal.buffer_view
      attributes {iree.abi.stub} {
    %x = hal.tensor.import %x_view : !hal.buffer_view -> tensor<8xf32>
    %y = flow.dispatch.region -> (tensor<8xf32>) {
      %empty = tensor.empty() : tensor<8xf32>
      %group = flow.dispatch.workgroup.id[0] : index
      %at = affine.apply affine_map<()[s0] -> (s0 * 2)>()[%group]
      %part = tensor.extract_slice %x[%at] [2] [1] : tensor<8xf32> to tensor<2xf32>
      %to = tensor.extract_slice %empty[%at] [2] [1] : tensor<8xf32> to tensor<2xf32>
      %length = arith.constant 2 : index
      %factor = arith.constant 2 : i64
      %scaled = iree_codegen.ukernel.generic "scale" ins(%part : tensor<2xf32>)
          outs(%to : tensor<2xf32>) (%length, %factor : index, i64)
          strided_dims([[], []]) -> tensor<2xf32>
      %all = tensor.insert_slice %scaled into %empty[%at] [2] [1]
          : tensor<2xf32> into tensor<8xf32>
      flow.return %all : tensor<8xf32>
    } count() -> (index, index, index) {
      %groups = arith.constant 4 : index
      %one = arith.constant 1 : index
      flow.return %groups, %one, %one : index, index, index
    }
    %y_view = hal.tensor.export %y : tensor<8xf32> -> !hal.buffer_view
    util.return %y_view : !hal.buffer_view
  }
}
