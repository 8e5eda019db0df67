/* An NVML of two GPUs; the second tells neither its power nor its energy, as some do not.

With FAKE_NVML_MEMORY, a directory, the memory of GPU 0 is that of the processes which have a file `0-PID` with the
number of their bytes there, as long as they live. */
#include <dirent.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_COUNT = 2 };

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

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

static unsigned processes_of(int gpu, nvmlProcessInfo_t *found, unsigned most) {
    DIR *directory = opendir(getenv("FAKE_NVML_MEMORY"));
    struct dirent *entry;
    unsigned count = 0;
    while (directory && count < most && (entry = readdir(directory))) {
        char path[4096], process[64];
        int number;
        unsigned pid;
        if (sscanf(entry->d_name, "%d-%u", &number, &pid) != 2 || number != gpu) continue;
        snprintf(process, sizeof process, "/proc/%u", pid);
        snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML_MEMORY"), entry->d_name);
        FILE *file = access(process, F_OK) ? NULL : fopen(path, "r");
        if (!file) continue;
        memset(&found[count], 0, sizeof *found);
        found[count].pid = pid;
        if (fscanf(file, "%llu", &found[count].used) == 1) count++;
        fclose(file);
    }
    if (directory) closedir(directory);
    return count;
}

enum { MOST_PROCESSES = 256 };

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    memory->total = device->index ? 8000000000 : 80000000000;
    memory->free = 1000;
    memory->used = memory->total - 1000;
    if (getenv("FAKE_NVML_MEMORY")) {
        nvmlProcessInfo_t found[MOST_PROCESSES];
        unsigned count = processes_of(device->index, found, MOST_PROCESSES);
        memory->used = 0;
        for (unsigned i = 0; i < count; i++) memory->used += found[i].used;
        memory->free = memory->total - memory->used;
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes) {
    nvmlProcessInfo_t found[MOST_PROCESSES];
    if (!getenv("FAKE_NVML_MEMORY")) return NOT_SUPPORTED;
    unsigned most = *count;
    *count = processes_of(device->index, found, MOST_PROCESSES);
    if (*count > most) return INSUFFICIENT_SIZE;
    memcpy(processes, found, *count * sizeof *found);
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
