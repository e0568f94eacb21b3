"""The calls of main.rs through IREE's Python bindings, which are the measure:

    pip install iree-base-runtime==3.13.0 numpy
    iree-compile --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu \\
        --iree-llvmcpu-target-cpu=host iree-rt/benches/call/add.mlir -o add.vmfb
    python iree-rt/benches/call/python.py add.vmfb

Prints the median time of a call. "single" leaves arguments and result on the device; "served" takes
a NumPy array and gives one back.
"""

import statistics
import sys
import time

import numpy as np
import iree.runtime as rt


def median_us(call, batches=50, calls=200):
    times = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times) * 1e6


config = rt.Config("local-sync")
module = rt.load_vm_module(rt.VmModule.mmap(config.vm_instance, sys.argv[1]), config)
x = np.array([1, 2, 3, 4], np.float32)
y = np.array([10, 20, 30, 40], np.float32)
a, b = (rt.asdevicearray(config.device, it) for it in (x, y))
add = module.add
assert add(x, y).to_host().tolist() == [11, 22, 33, 44]
print(f"single  {median_us(lambda: add(a, b)):8.2f} us")
print(f"served  {median_us(lambda: add(x, b).to_host()):8.2f} us")
