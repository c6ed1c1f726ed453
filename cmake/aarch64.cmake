# A build for aarch64 on another machine, whose tests run in an emulator (./x aarch64): Debian's g++-aarch64-linux-gnu and
# qemu-user. The compiler for kernels is the cross compiler, too: the emulator starts programs of this machine as they are.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
# Where Debian has the libraries of the other architecture. (The emulator's -L would replace this machine's root folder.)
set(libraries /usr/aarch64-linux-gnu/lib)
set(CMAKE_EXE_LINKER_FLAGS_INIT
    "-Wl,--dynamic-linker=${libraries}/ld-linux-aarch64.so.1 -Wl,-rpath,${libraries} -Wl,--allow-shlib-undefined")
