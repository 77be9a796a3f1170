#include "Runners/Threads.h"
