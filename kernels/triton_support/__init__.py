"""What all Triton kernels share: how they are launched, on which device, and what they cost once compiled.

    launch       Launch: a kernel with its grid and arguments, which can be run, or compiled without a GPU
    device       Gpu: the facts about a device that tunings depend on; host arrays to device in one copy
    resources    registers, spills and shared memory of a Launch for a given architecture

Nothing here runs at import; importing `triton` itself is left to the modules that need it.
"""
