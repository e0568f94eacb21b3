// Sums the rows of a matrix of weights that the model brings, and asks the host for the rest.
module @program {
  util.global private @weights = #flow.parameter.named<"model"::"weights"> : tensor<2x3xf32>

  func.func private @host.bias(tensor<2xf32>, !util.list<?>) -> tensor<2xf32>
  func.func private @host.count(!util.buffer) -> i32

  func.func @run(%x: tensor<3xf32>, %biases: !util.list<?>) -> (tensor<2xf32>, i32) {
    %weights = util.global.load @weights : tensor<2x3xf32>
    %product = stablehlo.dot_general %weights, %x, contracting_dims = [1] x [0]
        : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
    flow.tensor.trace "product" = [%product : tensor<2xf32>]
    %sum = call @host.bias(%product, %biases)
        : (tensor<2xf32>, !util.list<?>) -> tensor<2xf32>
    %name = util.buffer.constant : !util.buffer = "run"
    %count = call @host.count(%name) : (!util.buffer) -> i32
    return %sum, %count : tensor<2xf32>, i32
  }
}
