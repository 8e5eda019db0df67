/* A CUDA runtime of one device, whose memory is POSIX shared memory: a handle is the name of an object. */
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, INVALID_DEVICE = 101, NOT_MAPPED = 211, MAPPINGS = 16 };

typedef struct {
    char reserved[64];
} cudaIpcMemHandle_t;

static struct {
    char *address;
    size_t size;
} mappings[MAPPINGS];

static int device = -1;

int cudaGetDeviceCount(int *count) {
    *count = 1;
    return 0;
}

int cudaSetDevice(int id) {
    if (id != 0) return INVALID_DEVICE;
    device = id;
    return 0;
}

const char *cudaGetErrorString(int error) {
    return error == INVALID_VALUE ? "invalid argument" : "another error";
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
    mappings[slot].address = *pointer;
    mappings[slot].size = status.st_size;
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

int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    const char *on_device = kind == 1 ? to : from;
    if (device != 0 || (kind != 1 && kind != 2)) return INVALID_VALUE;
    for (int slot = 0; slot < MAPPINGS; slot++) {
        char *begin = mappings[slot].address;
        if (begin && on_device >= begin && on_device + size <= begin + mappings[slot].size) {
            memcpy(to, from, size);
            return 0;
        }
    }
    return INVALID_VALUE;
}
