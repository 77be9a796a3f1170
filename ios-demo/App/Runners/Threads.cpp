#include "Threads.h"

#include <cstddef>

// What ExecuTorch 1.4.1 has in `threadpool`, which the Swift package links and whose header it leaves out, since that needs
// pthreadpool's. The Swift API has no number of threads. Source: extension/threadpool/threadpool.h of pytorch/executorch.
namespace executorch::extension::threadpool {
class ThreadPool {
public:
    size_t get_thread_count() const;
    bool _unsafe_reset_threadpool(uint32_t num_threads);
};
ThreadPool* get_threadpool();
}

bool pocketbertUseThreads(uint32_t count) {
    auto* const pool = executorch::extension::threadpool::get_threadpool();
    if (pool == nullptr) return false;
    return pool->get_thread_count() == count || pool->_unsafe_reset_threadpool(count);
}
