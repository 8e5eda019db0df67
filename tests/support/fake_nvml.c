/* An NVML of two GPUs; the second tells neither its power nor its energy, as some do not. */
#include <stddef.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, GPU_COUNT = 2 };

typedef struct {
    int index;
    unsigned long long energy_mj;
} *nvmlDevice_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

static int is_initialized;
static struct {
    int index;
    unsigned long long energy_mj;
} gpus[GPU_COUNT] = {{0, 5000000}, {1, 0}};

const char *nvmlErrorString(int result) {
    return result == UNINITIALIZED ? "Uninitialized" : "Another error";
}

int nvmlInitWithFlags(unsigned flags) {
    is_initialized = 1;
    return SUCCESS;
}

int nvmlShutdown(void) {
    is_initialized = 0;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = GPU_COUNT;
    return is_initialized ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index >= GPU_COUNT) return INVALID_ARGUMENT;
    *device = (nvmlDevice_t)&gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    if (length < 96) return INVALID_ARGUMENT;
    strcpy(uuid, device->index ? "GPU-b1" : "GPU-a0");
    return SUCCESS;
}

int nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    if (length < 96) return INVALID_ARGUMENT;
    strcpy(name, device->index ? "Small GPU" : "Large GPU");
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    rates->gpu = device->index ? 0 : 25;
    rates->memory = 99;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    memory->total = device->index ? 8000000000 : 80000000000;
    memory->free = 1000;
    memory->used = memory->total - 1000;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    *milliwatts = 123400;
    return device->index ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts) {
    *milliwatts = 700000;
    return device->index ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    /* Each time that it is asked half a joule is gone. */
    *millijoules = device->energy_mj += 500;
    return device->index ? NOT_SUPPORTED : SUCCESS;
}
