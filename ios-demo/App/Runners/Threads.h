#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Tells ExecuTorch how many threads to use, in all of the process; no program may be loaded, since each keeps the address of
/// the pool that there was. False where it cannot be told.
bool pocketbertUseThreads(uint32_t count);

#ifdef __cplusplus
}
#endif
