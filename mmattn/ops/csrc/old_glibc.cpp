// Hides a variable of glibc 2.32, which headers of libstdc++ read, from the linker. The 0
// makes them count references by atomic operations, as they do on older systems.
#ifdef __linux__
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
#endif
