"""OpenMP's functions for a process that has no OpenMP: a parallel region is one call, on the thread that asks for it."""

from lowc.backends.llvm import toolchain

TEXT = """
define void @GOMP_parallel(ptr %function, ptr %data, i32 %threads, i32 %flags) nounwind {
  call void %function(ptr %data)
  ret void
}
define i32 @omp_get_thread_num() nounwind {
  ret i32 0
}
define i32 @omp_get_num_threads() nounwind {
  ret i32 1
}
"""


def code() -> bytes:
    """The object file, for every x86-64 processor."""
    return toolchain.emit_object(TEXT, "x86-64", "")
