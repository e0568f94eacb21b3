//! Faults of IREE that are mended in its sources before they are built.
//!
//! A checkout of the user's that `cargo xtask fetch-iree` is given is built as it is.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A fault, and what to replace to be rid of it.
struct Mend {
    /// In a word, for the manifest.
    name: &'static str,
    version: &'static str,
    file: &'static str,
    /// Text, what takes its place, and how often it is there.
    edits: &'static [(&'static str, &'static str, usize)],
}

const MENDS: [Mend; 9] = [
    // `local-sync` goes on behind a workgroup that failed, unless it is in the last row, and forgets why.
    Mend {
        name: "inline-dispatch-failure",
        version: "3.13.0",
        file: "runtime/src/iree/hal/local/local_executable.c",
        edits: &[
            (
                "for (uint32_t z = 0; z < workgroup_count_z; ++z) {",
                "for (uint32_t z = 0; iree_status_is_ok(status) && z < workgroup_count_z; ++z) {",
                1,
            ),
            (
                "for (uint32_t y = 0; y < workgroup_count_y; ++y) {",
                "for (uint32_t y = 0; iree_status_is_ok(status) && y < workgroup_count_y; ++y) {",
                1,
            ),
        ],
    },
    // `local-task` reads the queue from an operation that it has just handed to the workers, who may
    // be done with it: its memory may be another thread's operation or resource set by then.
    Mend {
        name: "task-queue-after-push",
        version: "3.13.0",
        file: "runtime/src/iree/hal/drivers/local_task/task_queue.c",
        edits: &[
            (
                "iree_hal_task_queue_op_slist_push(&operation->queue->ready_list,",
                "iree_hal_task_queue_t* const pushed_to = operation->queue; \
                 iree_hal_task_queue_op_slist_push(&pushed_to->ready_list,",
                2,
            ),
            (
                "schedule_process(operation->queue->executor,",
                "schedule_process(pushed_to->executor,",
                2,
            ),
            ("&operation->queue->process);", "&pushed_to->process);", 2),
        ],
    },
    // A thread that is woken by a semaphore spins until the worker that woke it has left the
    // callback. Where it took that worker's core, it spins for the rest of its time slice, 4 ms.
    Mend {
        name: "semaphore-wait-spin",
        version: "3.13.0",
        file: "runtime/src/iree/async/semaphore.c",
        edits: &[
            ("iree_processor_yield();", "iree_thread_yield();", 1),
            (
                "#include \"iree/base/threading/processor.h\"",
                "#include \"iree/base/threading/thread.h\"",
                1,
            ),
        ],
    },
    // Threads that wake a queue of Vulkan count, and then signal what they have counted: one may overtake
    // another, and the value of a semaphore must not fall. Mesa gives the device up.
    //
    // And a queue always waits for the first of two semaphores, which Mesa does in a loop that takes a core
    // where its driver knows no better (lavapipe). Without work in flight it waits for the one that wakes
    // it, which the first work signals too; with some for the end of that, and looks every 0.1 ms whether it is
    // to be woken.
    Mend {
        name: "vulkan-queue-waits",
        version: "3.13.0",
        file: "runtime/src/iree/hal/drivers/vulkan/queue.c",
        edits: &[
            (
                "const uint64_t new_value =\n      (uint64_t)iree_atomic_fetch_add(&queue->wakeup_value,",
                "iree_slim_mutex_lock(queue->queue_handle_mutex);\n  \
                 const uint64_t new_value = (uint64_t)iree_atomic_fetch_add(&queue->wakeup_value,",
                1,
            ),
            (
                "return iree_vkSignalSemaphore(IREE_VULKAN_DEVICE(&queue->syms),\n                                \
                 queue->logical_device, &signal_info);",
                "iree_status_t status = iree_vkSignalSemaphore(\n      \
                 IREE_VULKAN_DEVICE(&queue->syms), queue->logical_device, &signal_info);\n  \
                 iree_slim_mutex_unlock(queue->queue_handle_mutex);\n  return status;",
                1,
            ),
            (
                "queue->pending_tail = submission;",
                "if ((queue->pending_tail = submission) == queue->pending_head) {\n    \
                 iree_status_ignore(iree_hal_vulkan_queue_signal_wakeup(queue));\n  }",
                1,
            ),
            (
                ".flags = VK_SEMAPHORE_WAIT_ANY_BIT,\n        \
                 .semaphoreCount = IREE_ARRAYSIZE(wait_semaphores),\n        \
                 .pSemaphores = wait_semaphores,\n        .pValues = wait_values,",
                ".semaphoreCount = 1,\n        .pSemaphores = &wait_semaphores[!has_pending],\n        \
                 .pValues = &wait_values[!has_pending],",
                1,
            ),
            (
                "&queue->syms, queue->logical_device, &wait_info, UINT64_MAX);\n    \
                 if (result == VK_SUCCESS) {",
                "&queue->syms, queue->logical_device, &wait_info, has_pending ? 100000 : UINT64_MAX);\n    \
                 if (result == VK_SUCCESS || result == VK_TIMEOUT) {",
                1,
            ),
        ],
    },
    // Who hands work whose semaphores are reached to the queue's thread tells those who wait for that in the work's own
    // memory, which the thread may have run and freed by then.
    Mend {
        name: "vulkan-deferred-post",
        version: "3.13.0",
        file: "runtime/src/iree/hal/drivers/vulkan/queue.c",
        edits: &[(
            "  iree_slim_mutex_unlock(&queue->submission_mutex);\n\n  \
             iree_notification_post(&submission->callback_notification, IREE_ALL_WAITERS);\n  \
             if (!was_deferred) {",
            "  iree_notification_post(&submission->callback_notification, IREE_ALL_WAITERS);\n  \
             iree_slim_mutex_unlock(&queue->submission_mutex);\n\n  \
             if (!was_deferred) {",
            1,
        )],
    },
    // Threads that share a device of Vulkan count its memory, and nothing keeps them apart.
    Mend {
        name: "vulkan-memory-counts",
        version: "3.13.0",
        file: "runtime/src/iree/hal/drivers/vulkan/allocator.c",
        edits: &[
            (
                "IREE_STATISTICS(iree_hal_allocator_statistics_record_alloc(\n        &allocator->statistics,",
                "IREE_STATISTICS(iree_slim_mutex_lock(&allocator->virtual_memory_mutex));\n    \
                 IREE_STATISTICS(iree_hal_allocator_statistics_record_alloc(&allocator->statistics,",
                2,
            ),
            (
                "iree_hal_buffer_byte_length(buffer)));\n    *out_buffer",
                "iree_hal_buffer_byte_length(buffer)));\n    \
                 IREE_STATISTICS(iree_slim_mutex_unlock(&allocator->virtual_memory_mutex));\n    *out_buffer",
                1,
            ),
            (
                "physical_memory->allocation_size));\n    *out_physical_memory",
                "physical_memory->allocation_size));\n    \
                 IREE_STATISTICS(iree_slim_mutex_unlock(&allocator->virtual_memory_mutex));\n    \
                 *out_physical_memory",
                1,
            ),
            (
                "iree_hal_allocator_statistics_record_free(\n        &allocator->statistics, \
                 iree_hal_buffer_memory_type(base_buffer),\n        \
                 iree_hal_buffer_byte_length(base_buffer));",
                "iree_slim_mutex_lock(&allocator->virtual_memory_mutex);\n    \
                 iree_hal_allocator_statistics_record_free(&allocator->statistics,\n        \
                 iree_hal_buffer_memory_type(base_buffer), iree_hal_buffer_byte_length(base_buffer));\n    \
                 iree_slim_mutex_unlock(&allocator->virtual_memory_mutex);",
                1,
            ),
            (
                "    memcpy(out_statistics, &allocator->statistics, sizeof(*out_statistics));",
                "    iree_slim_mutex_lock(&allocator->virtual_memory_mutex);\n    \
                 *out_statistics = allocator->statistics;\n    \
                 iree_slim_mutex_unlock(&allocator->virtual_memory_mutex);",
                1,
            ),
        ],
    },
    // Threads that share a device of CUDA count its memory, and nothing keeps them apart.
    Mend {
        name: "cuda-memory-counts",
        version: "3.13.0",
        file: "runtime/src/iree/hal/drivers/cuda/cuda_allocator.c",
        edits: &[
            (
                // It is included above already.
                "#include \"iree/base/api.h\"\n#include \"iree/hal/drivers/cuda/cuda_allocator.h\"",
                "#include \"iree/base/api.h\"\n#include \"iree/base/threading/mutex.h\"",
                1,
            ),
            (
                "IREE_STATISTICS(iree_hal_allocator_statistics_t statistics;)",
                "IREE_STATISTICS(iree_slim_mutex_t statistics_mutex;\n                  \
                 iree_hal_allocator_statistics_t statistics;)",
                1,
            ),
            (
                "= parent_device;\n  allocator->device = device;",
                "= parent_device;\n  \
                 IREE_STATISTICS(iree_slim_mutex_initialize(&allocator->statistics_mutex));\n  \
                 allocator->device = device;",
                1,
            ),
            (
                "IREE_TRACE_ZONE_BEGIN(z0);\n\n  iree_allocator_free(allocator->host_allocator, allocator);",
                "IREE_TRACE_ZONE_BEGIN(z0);\n\n  \
                 IREE_STATISTICS(iree_slim_mutex_deinitialize(&allocator->statistics_mutex));\n  \
                 iree_allocator_free(allocator->host_allocator, allocator);",
                1,
            ),
            (
                "memcpy(out_statistics, &allocator->statistics, sizeof(*out_statistics));",
                "iree_slim_mutex_lock(&allocator->statistics_mutex);\n    \
                 *out_statistics = allocator->statistics;\n    \
                 iree_slim_mutex_unlock(&allocator->statistics_mutex);",
                1,
            ),
            (
                "IREE_STATISTICS(iree_hal_allocator_statistics_record_alloc(\n        \
                 &allocator->statistics, compat_params.type, allocation_size));",
                "IREE_STATISTICS(iree_slim_mutex_lock(&allocator->statistics_mutex));\n    \
                 IREE_STATISTICS(iree_hal_allocator_statistics_record_alloc(&allocator->statistics,\n        \
                 compat_params.type, allocation_size));\n    \
                 IREE_STATISTICS(iree_slim_mutex_unlock(&allocator->statistics_mutex));",
                1,
            ),
            (
                "IREE_STATISTICS(iree_hal_allocator_statistics_record_free(\n          &allocator->statistics,",
                "IREE_STATISTICS(iree_slim_mutex_lock(&allocator->statistics_mutex));\n      \
                 IREE_STATISTICS(iree_hal_allocator_statistics_record_free(&allocator->statistics,",
                2,
            ),
            (
                "iree_hal_buffer_allocation_size(base_buffer)));\n      break;",
                "iree_hal_buffer_allocation_size(base_buffer)));\n      \
                 IREE_STATISTICS(iree_slim_mutex_unlock(&allocator->statistics_mutex));\n      break;",
                1,
            ),
            (
                "iree_hal_buffer_allocation_size(buffer)));\n      break;",
                "iree_hal_buffer_allocation_size(buffer)));\n      \
                 IREE_STATISTICS(iree_slim_mutex_unlock(&allocator->statistics_mutex));\n      break;",
                1,
            ),
        ],
    },
    // What a device of CUDA has in pools is put in the place of what it has besides, and not added to it.
    Mend {
        name: "cuda-pool-counts",
        version: "3.13.0",
        file: "runtime/src/iree/hal/drivers/cuda/memory_pools.c",
        edits: &[
            ("bytes_allocated = iree_atomic_load(", "bytes_allocated += iree_atomic_load(", 2),
            ("bytes_freed = iree_atomic_load(", "bytes_freed += iree_atomic_load(", 2),
        ],
    },
    // Each executable that is loaded has the table of the CPU's features cleared and written anew, while
    // other threads read it: they see a CPU without features. And nobody reads it before one was loaded.
    Mend {
        name: "cpu-features-once",
        version: "3.13.0",
        file: "runtime/src/iree/base/internal/cpu.c",
        edits: &[
            (
                "#include \"iree/base/internal/cpu.h\"\n\n#include \"iree/schemas/cpu_data.h\"",
                "#include \"iree/base/internal/cpu.h\"\n\n#include \"iree/base/threading/call_once.h\"\n\
                 #include \"iree/schemas/cpu_data.h\"",
                1,
            ),
            (
                "void iree_cpu_initialize(iree_allocator_t temp_allocator) {\n  \
                 IREE_TRACE_ZONE_BEGIN(z0);\n  \
                 memset(iree_cpu_data_cache_, 0, sizeof(iree_cpu_data_cache_));\n  \
                 iree_cpu_initialize_from_platform(temp_allocator, iree_cpu_data_cache_);\n  \
                 IREE_TRACE_ZONE_END(z0);\n}",
                "static void iree_cpu_initialize_cache(void) {\n  \
                 iree_cpu_initialize_from_platform(iree_allocator_null(), iree_cpu_data_cache_);\n}\n\n\
                 void iree_cpu_initialize(iree_allocator_t temp_allocator) {\n  \
                 static iree_once_flag once = IREE_ONCE_FLAG_INIT;\n  \
                 iree_call_once(&once, iree_cpu_initialize_cache);\n}",
                1,
            ),
            (
                "int64_t* IREE_RESTRICT out_value) {\n#define",
                "int64_t* IREE_RESTRICT out_value) {\n  \
                 iree_cpu_initialize(iree_allocator_null());\n#define",
                1,
            ),
        ],
    },
];

/// The names of what is mended in trees of this version.
pub fn names(version: &str) -> Vec<String> {
    MENDS.iter().filter(|it| it.version == version).map(|it| it.name.to_owned()).collect()
}

/// Which of this version's are not in `mended`, a manifest's list.
pub fn lacking(mended: &[String], version: &str) -> Vec<String> {
    names(version).into_iter().filter(|name| !mended.contains(name)).collect()
}

/// Where the files that the runtime is built from are in a tree: the folders of which only the files are
/// needed, and those of which all is. A checkout has gigabytes besides.
const FILES: [&str; 3] = ["", "compiler", "tests"];
const FOLDERS: [&str; 11] = [
    "build_tools",
    "compiler/bindings",
    "lib",
    "runtime",
    "third_party/dlmalloc",
    "third_party/flatcc",
    "third_party/nccl",
    "third_party/nvidia_sdk_download",
    "third_party/rccl",
    "third_party/vulkan_headers",
    "tools",
];

/// A mended copy of what the runtime is built from in the tree `from` of this version, at `to`.
///
/// # Errors
///
/// [`Error::Io`], and [`Error::Request`] when a file is not the one that the mend was made for.
pub fn copy(from: &Path, to: PathBuf, version: &str) -> Result<PathBuf> {
    for folder in FILES {
        copy_folder(&from.join(folder), &to.join(folder), false)?;
    }
    for folder in FOLDERS {
        copy_folder(&from.join(folder), &to.join(folder), true)?;
    }
    in_place(&to, version)?;
    Ok(to)
}

/// Mends the tree `dir` of this version.
///
/// # Errors
///
/// As [`copy`].
pub fn in_place(dir: &Path, version: &str) -> Result<()> {
    for mend in MENDS.iter().filter(|it| it.version == version) {
        let path = dir.join(mend.file);
        let mut text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        for (old, new, times) in mend.edits {
            if text.matches(old).count() != *times {
                return Err(Error::Request(format!(
                    "{} is not that of IREE {version}: `{}` cannot be mended in it",
                    path.display(),
                    mend.name
                )));
            }
            text = text.replace(old, new);
        }
        // A new file: a copy of one that must not be written to must not be either.
        fs::remove_file(&path).map_err(Error::io("replace", &path))?;
        fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    Ok(())
}

/// Copies the files in a folder, if it is there, and with `deep` its folders too.
fn copy_folder(from: &Path, to: &Path, deep: bool) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(to).map_err(Error::io("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::io("read", from))? {
        let entry = entry.map_err(Error::io("read", from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        // Links into what a checkout lacks, and what git keeps of submodules, are not built from.
        if entry.file_name() == ".git" {
            continue;
        }
        if path.is_file() {
            fs::copy(&path, &target).map_err(Error::io("write", &target))?;
        } else if deep {
            copy_folder(&path, &target, deep)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree, at `dir`, that has in its files what is mended and nothing else.
    fn tree(dir: &Path) {
        for mend in &MENDS {
            let file = dir.join(mend.file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text(mend.file)).unwrap();
        }
    }

    /// What all of them mend in `file`.
    fn text(file: &str) -> String {
        let edits = MENDS.iter().filter(|it| it.file == file).flat_map(|it| it.edits);
        edits.map(|(old, _, times)| format!("{old}\n").repeat(*times)).collect()
    }

    #[test]
    fn a_tree_is_mended_once_and_only_that_of_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("LICENSE"), "text").unwrap();
        tree(&from);

        let version = MENDS[0].version;
        let copied = copy(&from, to, version).unwrap();
        assert_eq!(fs::read_to_string(copied.join("LICENSE")).unwrap(), "text");
        for mend in &MENDS {
            let mended = fs::read_to_string(copied.join(mend.file)).unwrap();
            for (old, new, times) in mend.edits {
                assert_eq!((mended.matches(old).count(), mended.matches(new).count()), (0, *times));
            }
            let original = fs::read_to_string(from.join(mend.file)).unwrap();
            assert_eq!(original, text(mend.file), "the original stays");
        }
        let again = in_place(&copied, version).unwrap_err().to_string();
        assert!(again.contains(MENDS[0].name), "{again}");
        in_place(&copied, "3.14.0").unwrap();
        assert_eq!((names(version).len(), names("3.14.0").len()), (MENDS.len(), 0));
        let first = [MENDS[0].name.to_owned()];
        assert_eq!(lacking(&first, version), names(version)[1..]);
        assert_eq!(lacking(&names(version), version), [""; 0]);
    }

    #[test]
    fn sources_that_must_not_be_written_to_are_mended_in_their_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        tree(&from);
        for mend in &MENDS {
            let file = from.join(mend.file);
            let mut permissions = fs::metadata(&file).unwrap().permissions();
            permissions.set_readonly(true);
            fs::set_permissions(&file, permissions).unwrap();
        }
        let copied = copy(&from, to, MENDS[0].version).unwrap();
        for mend in &MENDS {
            // Whoever is root writes to them all the same.
            let file = fs::metadata(copied.join(mend.file)).unwrap();
            assert!(!file.permissions().readonly(), "{}", mend.file);
        }
    }

    #[test]
    fn of_a_checkout_only_what_the_runtime_is_built_from_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        tree(&from);
        let needed =
            ["CMakeLists.txt", "compiler/CMakeLists.txt", "third_party/flatcc/include/flatcc.h"];
        let others = [
            ".git/objects/pack",
            "third_party/flatcc/.git",
            "third_party/llvm-project/llvm/CMakeLists.txt",
            "compiler/src/CMakeLists.txt",
            "build/CMakeCache.txt",
        ];
        for file in needed.iter().chain(&others).map(|file| from.join(file)) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "text").unwrap();
        }
        #[cfg(unix)]
        for link in ["bazel-bin", "runtime/link"] {
            std::os::unix::fs::symlink("/no/such/file", from.join(link)).unwrap();
        }
        let copied = copy(&from, to, MENDS[0].version).unwrap();
        for file in needed {
            assert!(copied.join(file).exists(), "{file}");
        }
        for file in others.into_iter().chain(["bazel-bin", "runtime/link"]) {
            assert!(fs::symlink_metadata(copied.join(file)).is_err(), "{file}");
        }
    }
}
