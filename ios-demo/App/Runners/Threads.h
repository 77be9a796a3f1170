#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// The threads of ExecuTorch's pool, which all of the process shares; 0 where there is none.
uint32_t pocketbertThreads(void);

/// Frees the pool and makes one of so many threads. No program may be loaded, since each keeps the address of the pool that
/// there was. False where the pool does not have that count after it.
bool pocketbertUseThreads(uint32_t count);

#ifdef __cplusplus
}
#endif
