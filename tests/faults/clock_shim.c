/* The clock that shows the time of day, moved by what a mapped file says; the others as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long moved_s(void) {
    static volatile long *shared;
    if (!shared) {
        int file = open(getenv("MOVED_SECONDS"), O_RDONLY | O_CLOEXEC);
        void *map = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (map == MAP_FAILED) abort();
        shared = map;
    }
    return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, at);
    if (!code && clock == CLOCK_REALTIME) at->tv_sec += moved_s();
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return code;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
