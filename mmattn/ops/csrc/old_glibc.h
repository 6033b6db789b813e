// Names the versions of symbols that glibc 2.28 has, too: setup.py includes this in every
// file, so that the library runs on older systems than the one that builds it.
#if defined(__x86_64__) && defined(__linux__)
__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif
