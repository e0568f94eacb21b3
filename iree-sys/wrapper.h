// The one header that bindgen reads: the parts of IREE's C API that this crate
// exposes. Everything else in this crate is Rust.

#include "iree/runtime/api.h"

// Bytecode modules and the HAL module, for sessions made of several modules.
#include "iree/modules/hal/module.h"

// iree/vm/bytecode/module.h includes headers that IREE's build generates (flatcc
// readers, the op table) and that no IREE folder is promised to hold; of it only
// these are needed. The flags and feature bits are C enums: `unsigned int`.
typedef uint32_t iree_vm_bytecode_module_flag_bits_t;
IREE_API_EXPORT iree_status_t iree_vm_bytecode_module_create(
    iree_vm_instance_t* instance, iree_vm_bytecode_module_flag_bits_t flags,
    iree_const_byte_span_t archive_contents, iree_allocator_t archive_allocator,
    iree_allocator_t allocator, iree_vm_module_t** out_module);

// Parameter (weight) archives.
#include "iree/io/file_handle.h"
#include "iree/io/formats/irpa/irpa_builder.h"
#include "iree/io/parameter_index.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/io/parameters/module.h"

// Device groups.
#include "iree/async/frontier_tracker.h"

// Drivers by name.
#include "iree/hal/drivers/init.h"

// CPU devices made by hand: worker topology, executable loaders, plugins.
#include "iree/async/util/proactor_pool.h"
#include "iree/base/threading/numa.h"
#include "iree/hal/drivers/local_sync/sync_device.h"
#include "iree/hal/drivers/local_task/task_device.h"
#include "iree/hal/local/executable_library.h"
#include "iree/hal/local/executable_loader.h"
#include "iree/hal/local/executable_plugin_manager.h"
#include "iree/hal/local/loaders/embedded_elf_loader.h"
#include "iree/hal/local/loaders/registration/init.h"
#include "iree/hal/local/loaders/vmvx_module_loader.h"
#include "iree/hal/local/local_executable.h"
#include "iree/task/executor.h"
#include "iree/task/topology.h"

// CUDA devices made by hand: the registry's have parameters from command-line flags only.
#include "iree/hal/drivers/cuda/api.h"

// Profiling: what a sink of ours receives and writes.
#include "iree/hal/profile_schema.h"
#include "iree/hal/profile_sink.h"
#include "iree/hal/utils/profile_file.h"
