#include "Threads.h"

#include <cstddef>

// What ExecuTorch 1.4.1 has in `threadpool`, which the Swift package links without a header, and whose count the Swift API does
// not tell or take. Source: extension/threadpool/threadpool.h of pytorch/executorch; `_unsafe_reset_threadpool` is deprecated
// there without a successor outside of Meta, and this file is its only caller.
namespace executorch::extension::threadpool {
class ThreadPool final {
public:
    size_t get_thread_count() const;
    bool _unsafe_reset_threadpool(uint32_t num_threads);
};
ThreadPool* get_threadpool();
}

using executorch::extension::threadpool::get_threadpool;

uint32_t pocketbertThreads() {
    auto* const pool = get_threadpool();
    return pool == nullptr ? 0 : static_cast<uint32_t>(pool->get_thread_count());
}

bool pocketbertUseThreads(uint32_t count) {
    auto* const pool = get_threadpool();
    return pool != nullptr && pool->_unsafe_reset_threadpool(count) && pool->get_thread_count() == count;
}
