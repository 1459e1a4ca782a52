"""What the backends share: a builder of LLVM IR text, and llvmlite, which makes objects and assembly of that text."""
