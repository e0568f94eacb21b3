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

const MENDS: [Mend; 4] = [
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
];

/// The names of what is mended in trees of this version.
pub fn names(version: &str) -> Vec<String> {
    MENDS.iter().filter(|it| it.version == version).map(|it| it.name.to_owned()).collect()
}

/// Which of this version's are not in `mended`, a manifest's list.
pub fn lacking(mended: &[String], version: &str) -> Vec<String> {
    names(version).into_iter().filter(|name| !mended.contains(name)).collect()
}

/// A mended copy of the tree `from` of this version, at `to`.
///
/// # Errors
///
/// [`Error::Io`], and [`Error::Request`] when a file is not the one that the mend was made for.
pub fn copy(from: &Path, to: PathBuf, version: &str) -> Result<PathBuf> {
    copy_tree(from, &to)?;
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
        fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(Error::io("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::io("read", from))? {
        let entry = entry.map_err(Error::io("read", from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_tree(&path, &target)?;
        } else {
            fs::copy(&path, &target).map_err(Error::io("write", &target))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_mended_once_and_only_that_of_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("LICENSE"), "text").unwrap();
        let text = |mend: &Mend| -> String {
            mend.edits.iter().map(|(old, _, times)| format!("{old}\n").repeat(*times)).collect()
        };
        for mend in &MENDS {
            let file = from.join(mend.file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text(mend)).unwrap();
        }

        let version = MENDS[0].version;
        let copied = copy(&from, to, version).unwrap();
        assert_eq!(fs::read_to_string(copied.join("LICENSE")).unwrap(), "text");
        for mend in &MENDS {
            let mended = fs::read_to_string(copied.join(mend.file)).unwrap();
            for (old, new, times) in mend.edits {
                assert_eq!((mended.matches(old).count(), mended.matches(new).count()), (0, *times));
            }
            let original = fs::read_to_string(from.join(mend.file)).unwrap();
            assert_eq!(original, text(mend), "the original stays");
        }
        let again = in_place(&copied, version).unwrap_err().to_string();
        assert!(again.contains(MENDS[0].name), "{again}");
        in_place(&copied, "3.14.0").unwrap();
        assert_eq!((names(version).len(), names("3.14.0").len()), (MENDS.len(), 0));
        let first = [MENDS[0].name.to_owned()];
        assert_eq!(lacking(&first, version), [MENDS[1].name, MENDS[2].name, MENDS[3].name]);
        assert_eq!(lacking(&names(version), version), [""; 0]);
    }
}
