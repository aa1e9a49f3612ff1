/* Preloaded into a server: one allocation fails, or all from one on. The binary has an allocator of its
 * own inside (mimalloc, linked statically), so the four functions by which Rust calls it are led here
 * at start, and served by libc's; mmap is counted with them, for stacks of threads and rings.
 *
 * FAILING_SYMBOLS: the offsets of mi_malloc_aligned, mi_zalloc_aligned, mi_realloc_aligned and mi_free in
 *                  the binary, in hex.
 * FAILING_CONTROL: a file of three numbers of 64 bits: how many allocations are left until one fails (0:
 *                  none is to), whether all after it fail too, and how many there have been. It can be
 *                  written while the server runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct control {
    _Atomic int64_t left, for_good, count;
};
static struct control none, *control = &none;
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);

static int fails(void)
{
    atomic_fetch_add(&control->count, 1);
    int64_t left = atomic_load(&control->left);
    if (left < 0)
        return 1;
    /* Somebody else may write it at the same moment: then one that is next to it fails. */
    while (left > 0 && !atomic_compare_exchange_weak(&control->left, &left, left - 1))
        ;
    if (left != 1)
        return 0;
    if (atomic_load(&control->for_good))
        atomic_store(&control->left, -1);
    return 1;
}

static void *take(size_t size, size_t alignment)
{
    void *found = NULL;
    if (fails())
        return NULL;
    if (alignment <= 16)
        return malloc(size ? size : 1);
    return posix_memalign(&found, alignment, size) ? NULL : found;
}

static void *take_zeroed(size_t size, size_t alignment)
{
    void *found;
    if (alignment <= 16)
        return fails() ? NULL : calloc(1, size ? size : 1);
    found = take(size, alignment);
    return found ? memset(found, 0, size) : NULL;
}

static void *take_again(void *held, size_t size, size_t alignment)
{
    size_t has;
    void *found;
    if (alignment <= 16)
        return fails() ? NULL : realloc(held, size ? size : 1);
    found = take(size, alignment);
    if (found && held) {
        has = malloc_usable_size(held);
        memcpy(found, held, has < size ? has : size);
        free(held);
    }
    return found;
}

static void give_back(void *held) { free(held); }

void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset)
{
    if (!real_mmap)
        real_mmap = dlsym(RTLD_NEXT, "mmap");
    if (fails()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return real_mmap(at, length, protection, flags, file, offset);
}

/* The binary itself comes first. */
static int first(struct dl_phdr_info *info, size_t size, void *base)
{
    (void)size;
    *(uintptr_t *)base = info->dlpi_addr;
    return 1;
}

/* A jump to `to` in the place of a function's first instructions. */
static void lead(uintptr_t from, void *to)
{
#if defined(__x86_64__)
    unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
    memcpy(jump + 2, &to, 8);
#elif defined(__aarch64__)
    unsigned char jump[16] = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6};
    memcpy(jump + 8, &to, 8);
#else
#error "not for this processor"
#endif
    uintptr_t page = from & ~(uintptr_t)4095;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
        _exit(99);
    memcpy((void *)from, jump, sizeof jump);
    __builtin___clear_cache((char *)from, (char *)from + sizeof jump);
    mprotect((void *)page, 8192, PROT_READ | PROT_EXEC);
}

__attribute__((constructor)) static void begin(void)
{
    void *targets[] = {take, take_zeroed, take_again, give_back};
    const char *symbols = getenv("FAILING_SYMBOLS"), *path = getenv("FAILING_CONTROL");
    uintptr_t base = 0;
    char *end;
    int file;
    if (!symbols || !path)
        return;
    real_mmap = dlsym(RTLD_NEXT, "mmap");
    file = open(path, O_RDWR | O_CLOEXEC);
    dl_iterate_phdr(first, &base);
    for (int i = 0; i < 4; i++) {
        uintptr_t offset = strtoull(symbols, &end, 16);
        if (end == symbols)
            _exit(99);
        lead(base + offset, targets[i]);
        symbols = end;
    }
    void *held = real_mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || held == MAP_FAILED)
        _exit(99);
    close(file);
    control = held;
}
