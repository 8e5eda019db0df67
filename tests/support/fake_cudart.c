/* A CUDA runtime of FAKE_CUDA_DEVICES devices (1), whose memory is that of the host: allocations are malloc's, and a
   handle of another process is the name of a POSIX shared memory object. As in CUDA, each thread has a device of its
   own; unlike there, it must be set, and memory must be that of the current device. */
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_MAPPED = 211, INVALID_HANDLE = 400 };
enum { MAPPINGS = 16, ALLOCATIONS = 256, PINNED = -2, STREAM = -3 };

typedef struct {
    char reserved[64];
} cudaIpcMemHandle_t;

typedef struct {
    char *address;
    size_t size;
    int device;
} Memory;

static Memory mappings[MAPPINGS], allocations[ALLOCATIONS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int device = -1;

int cudaGetDeviceCount(int *count) {
    const char *text = getenv("FAKE_CUDA_DEVICES");
    *count = text ? atoi(text) : 1;
    return 0;
}

int cudaSetDevice(int id) {
    int count;
    cudaGetDeviceCount(&count);
    if (id < 0 || id >= count) return INVALID_DEVICE;
    device = id;
    return 0;
}

int cudaGetDevice(int *id) {
    *id = device < 0 ? 0 : device;
    return 0;
}

const char *cudaGetErrorString(int error) {
    return error == INVALID_VALUE ? "invalid argument" : error == OUT_OF_MEMORY ? "out of memory" : "another error";
}

int cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags) {
    struct stat status;
    int slot = 0;
    if (device != 0 || flags != 1 || memchr(handle.reserved, 0, 64) == NULL) return INVALID_VALUE;
    while (slot < MAPPINGS && mappings[slot].address) slot++;
    int descriptor = shm_open(handle.reserved, O_RDWR, 0);
    if (slot == MAPPINGS || descriptor < 0) return INVALID_VALUE;
    fstat(descriptor, &status);
    *pointer = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    mappings[slot] = (Memory){*pointer, status.st_size, 0};
    return 0;
}

int cudaIpcCloseMemHandle(void *pointer) {
    for (int slot = 0; slot < MAPPINGS; slot++) {
        if (mappings[slot].address == pointer) {
            munmap(pointer, mappings[slot].size);
            mappings[slot].address = NULL;
            return 0;
        }
    }
    return NOT_MAPPED;
}

static char *shared_name(char *name, int slot) {
    snprintf(name, 64, "/fake_cuda_%d_%d", (int)getpid(), slot);
    return name;
}

/* With FAKE_CUDA_EXPORTS set, device memory is that of shared objects, which other processes can open. */
static int is_shared(int owner) { return owner >= 0 && getenv("FAKE_CUDA_EXPORTS") != NULL; }

static void *allocate_shared(size_t size, int slot) {
    char name[64];
    int descriptor = shm_open(shared_name(name, slot), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (descriptor < 0) return NULL;
    void *address = ftruncate(descriptor, size) ? MAP_FAILED
                                                : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    return address == MAP_FAILED ? NULL : address;
}

int cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    for (int slot = 0; slot < ALLOCATIONS; slot++) {
        if (pointer && allocations[slot].address == pointer && is_shared(allocations[slot].device)) {
            shared_name(handle->reserved, slot);
            return 0;
        }
    }
    return INVALID_VALUE;
}

static int create(void **pointer, size_t size, int owner) {
    int status = OUT_OF_MEMORY;
    if (device < 0) return INVALID_DEVICE;
    if (size > (size_t)1 << 32) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (int slot = 0; slot < ALLOCATIONS && status; slot++) {
        if (!allocations[slot].address) {
            *pointer = is_shared(owner) ? allocate_shared(size ? size : 1, slot) : malloc(size ? size : 1);
            if (!*pointer) break;
            allocations[slot] = (Memory){*pointer, size, owner};
            status = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static int destroy(void *pointer, int owner) {
    int status = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int slot = 0; slot < ALLOCATIONS && status; slot++) {
        if (pointer && allocations[slot].address == pointer && allocations[slot].device == owner) {
            if (is_shared(owner)) {
                char name[64];
                munmap(pointer, allocations[slot].size ? allocations[slot].size : 1);
                shm_unlink(shared_name(name, slot));
            } else {
                free(pointer);
            }
            allocations[slot].address = NULL;
            status = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static int contains(const Memory *memories, int count, const char *address, size_t size, int owner) {
    for (int slot = 0; slot < count; slot++) {
        const Memory *memory = &memories[slot];
        if (memory->address && memory->device == owner && address >= memory->address &&
            address + size <= memory->address + memory->size)
            return 1;
    }
    return 0;
}

/* Number of allocations, pinned memory and streams included: for tests. */
int fakeAllocationCount(void) {
    int count = 0;
    for (int slot = 0; slot < ALLOCATIONS; slot++) count += allocations[slot].address != NULL;
    return count;
}

int cudaMalloc(void **pointer, size_t size) { return create(pointer, size, device); }
int cudaFree(void *pointer) { return destroy(pointer, device); }
int cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    return flags ? INVALID_VALUE : create(pointer, size, PINNED);
}
int cudaFreeHost(void *pointer) { return destroy(pointer, PINNED); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    return flags == 1 ? create(stream, 1, STREAM) : INVALID_VALUE;
}
int cudaStreamDestroy(void *stream) { return destroy(stream, STREAM); }
int cudaStreamSynchronize(void *stream) {
    return stream == NULL || contains(allocations, ALLOCATIONS, stream, 1, STREAM) ? 0 : INVALID_HANDLE;
}

static int is_here(const char *address, size_t size) {
    return contains(mappings, MAPPINGS, address, size, device) ||
           contains(allocations, ALLOCATIONS, address, size, device);
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    if (device < 0 || (kind != 1 && kind != 2) || !is_here(kind == 1 ? to : from, size)) return INVALID_VALUE;
    memcpy(to, from, size);
    return 0;
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    const char *on_host = kind == 1 ? from : to;
    if (cudaStreamSynchronize(stream)) return INVALID_HANDLE;
    if (kind == 3) {
        if (!is_here(from, size) || !is_here(to, size)) return INVALID_VALUE;
        memcpy(to, from, size);
        return 0;
    }
    if (!contains(allocations, ALLOCATIONS, on_host, size, PINNED)) return INVALID_VALUE;
    return cudaMemcpy(to, from, size, kind);
}
