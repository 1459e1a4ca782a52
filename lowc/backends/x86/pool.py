"""OpenMP's functions for a shared library of its own: a small pool of threads, written in LLVM IR on the C library alone.

A region hands ``function`` and ``data`` to all threads by a count of regions, ``@generation``, on which idle threads wait
(spinning a little, then in the kernel), and ends when ``@left`` has come down to 0.  One region runs at a time: a caller that
finds the pool busy, or was forked from the process that has the threads, runs its region alone.  Threads are made at the first
region, as many as ``OMP_NUM_THREADS`` says, or else as the process may use processors, and stay; all signals are blocked in them.

What a thread is in a region, ``threads << 20 | number``, is kept under a key of ``pthread_setspecific``.
"""

from lowc.backends.llvm import toolchain

_WAIT, _WAKE = 128, 129  # futex operations, private to the process
_FUTEX = 202
_SPINS = 2000
MOST = 1024

TEXT = f"""
@state = internal global i32 0          ; 0: no threads yet, 1: somebody makes them, 2: they are there
@count = internal global i32 1          ; threads, the caller's included
@process = internal global i32 0
@key = internal global i32 0
@busy = internal global i32 0
@generation = internal global i32 0
@left = internal global i32 0
@function = internal global ptr null
@data = internal global ptr null
@variable = private constant [16 x i8] c"OMP_NUM_THREADS\\00"

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare ptr @getenv(ptr)
declare i64 @strtol(ptr, ptr, i32)
declare i32 @getpid()
declare i64 @syscall(i64, ...)
declare i64 @llvm.ctpop.i64(i64)
declare void @llvm.x86.sse2.pause()

define internal void @sleep(ptr %word, i32 %seen) nounwind {{
  %r = call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr %word, i32 {_WAIT}, i32 %seen, ptr null, ptr null, i32 0)
  ret void
}}

define internal void @wake(ptr %word) nounwind {{
  %r = call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr %word, i32 {_WAKE}, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}}

; the value at %word once it is no longer %seen
define internal i32 @await(ptr %word, i32 %seen) nounwind {{
entry:
  br label %again
again:
  %spins = phi i32 [ 0, %entry ], [ %more, %spin ], [ 0, %rest ]
  %now = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %now, %seen
  br i1 %changed, label %done, label %wait
wait:
  %tired = icmp sge i32 %spins, {_SPINS}
  br i1 %tired, label %rest, label %spin
spin:
  call void @llvm.x86.sse2.pause()
  %more = add i32 %spins, 1
  br label %again
rest:
  call void @sleep(ptr %word, i32 %seen)
  br label %again
done:
  ret i32 %now
}}

define internal void @become(i64 %threads, i64 %number) nounwind {{
  %high = shl i64 %threads, 20
  %both = or i64 %high, %number
  %value = inttoptr i64 %both to ptr
  %key = load i32, ptr @key
  %r = call i32 @pthread_setspecific(i32 %key, ptr %value)
  ret void
}}

define internal ptr @worker(ptr %argument) nounwind {{
entry:
  %number = ptrtoint ptr %argument to i64
  br label %next
next:
  %seen = phi i32 [ 0, %entry ], [ %now, %ended ]
  %now = call i32 @await(ptr @generation, i32 %seen)
  %count = load i32, ptr @count
  %threads = zext i32 %count to i64
  call void @become(i64 %threads, i64 %number)
  %function = load ptr, ptr @function
  %data = load ptr, ptr @data
  call void %function(ptr %data)
  %before = atomicrmw sub ptr @left, i32 1 acq_rel
  %last = icmp eq i32 %before, 1
  br i1 %last, label %tell, label %ended
tell:
  call void @wake(ptr @left)
  br label %ended
ended:
  br label %next
}}

; how many threads there should be
define internal i64 @wanted() nounwind {{
entry:
  %set = alloca [16 x i64], align 8
  %text = call ptr @getenv(ptr @variable)
  %unset = icmp eq ptr %text, null
  br i1 %unset, label %ask, label %read
read:
  %said = call i64 @strtol(ptr %text, ptr null, i32 10)
  %sane = icmp sgt i64 %said, 0
  br i1 %sane, label %done, label %ask
ask:
  call void @llvm.memset.p0.i64(ptr %set, i8 0, i64 128, i1 false)
  %r = call i32 @sched_getaffinity(i32 0, i64 128, ptr %set)
  br label %sum
sum:
  %i = phi i64 [ 0, %ask ], [ %following, %sum ]
  %total = phi i64 [ 0, %ask ], [ %new, %sum ]
  %place = getelementptr i64, ptr %set, i64 %i
  %bits = load i64, ptr %place
  %here = call i64 @llvm.ctpop.i64(i64 %bits)
  %new = add i64 %total, %here
  %following = add i64 %i, 1
  %end = icmp eq i64 %following, 16
  br i1 %end, label %done, label %sum
done:
  %n = phi i64 [ %said, %read ], [ %new, %sum ]
  %many = icmp sgt i64 %n, {MOST}
  %some = select i1 %many, i64 {MOST}, i64 %n
  ret i64 %some
}}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal void @start() nounwind {{
entry:
  %thread = alloca i64, align 8
  %all = alloca [16 x i64], align 8
  %old = alloca [16 x i64], align 8
  %wanted = call i64 @wanted()
  %several = icmp sgt i64 %wanted, 1
  br i1 %several, label %make, label %done
make:
  %failed = call i32 @pthread_key_create(ptr @key, ptr null)
  %keyless = icmp ne i32 %failed, 0
  br i1 %keyless, label %done, label %begin
begin:
  %pid = call i32 @getpid()
  store i32 %pid, ptr @process
  %r0 = call i32 @sigfillset(ptr %all)
  %r1 = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %old)
  br label %each
each:
  %n = phi i64 [ 1, %begin ], [ %more, %made ]
  %argument = inttoptr i64 %n to ptr
  %no = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %argument)
  %none = icmp ne i32 %no, 0
  br i1 %none, label %enough, label %made
made:
  %id = load i64, ptr %thread
  %r2 = call i32 @pthread_detach(i64 %id)
  %more = add i64 %n, 1
  %full = icmp eq i64 %more, %wanted
  br i1 %full, label %enough, label %each
enough:
  %there = phi i64 [ %n, %each ], [ %more, %made ]
  %r3 = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  %count = trunc i64 %there to i32
  store i32 %count, ptr @count
  br label %done
done:
  store atomic i32 2, ptr @state release, align 4
  ret void
}}

; whether the pool is the caller's now
define internal i1 @taken(i32 %threads) nounwind {{
entry:
  %alone = icmp eq i32 %threads, 1
  br i1 %alone, label %no, label %look
look:
  %state = load atomic i32, ptr @state acquire, align 4
  %new = icmp eq i32 %state, 0
  br i1 %new, label %claim, label %ready
claim:
  %pair = cmpxchg ptr @state, i32 0, i32 1 acq_rel acquire
  %mine = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %mine, label %begin, label %no
begin:
  call void @start()
  br label %ready
ready:
  %now = load atomic i32, ptr @state acquire, align 4
  %made = icmp eq i32 %now, 2
  br i1 %made, label %enough, label %no
enough:
  %count = load i32, ptr @count
  %several = icmp sgt i32 %count, 1
  br i1 %several, label %same, label %no
same:
  %pid = call i32 @getpid()
  %process = load i32, ptr @process
  %unforked = icmp eq i32 %pid, %process
  br i1 %unforked, label %lock, label %no
lock:
  %try = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %try, 1
  ret i1 %got
no:
  ret i1 false
}}

define void @GOMP_parallel(ptr %function, ptr %data, i32 %threads, i32 %flags) nounwind {{
entry:
  %together = call i1 @taken(i32 %threads)
  %state = load atomic i32, ptr @state acquire, align 4
  %keyed = icmp eq i32 %state, 2
  %count = load i32, ptr @count
  %several = icmp sgt i32 %count, 1
  %known = and i1 %keyed, %several
  br i1 %together, label %all, label %one
all:
  store ptr %function, ptr @function
  store ptr %data, ptr @data
  %others = sub i32 %count, 1
  store atomic i32 %others, ptr @left monotonic, align 4
  %r = atomicrmw add ptr @generation, i32 1 release
  call void @wake(ptr @generation)
  %all.key = load i32, ptr @key
  %all.before = call ptr @pthread_getspecific(i32 %all.key)
  %wide = zext i32 %count to i64
  call void @become(i64 %wide, i64 0)
  call void %function(ptr %data)
  %r2 = call i32 @pthread_setspecific(i32 %all.key, ptr %all.before)
  br label %check
check:
  %left = load atomic i32, ptr @left acquire, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %end, label %wait
wait:
  %r3 = call i32 @await(ptr @left, i32 %left)
  br label %check
end:
  store atomic i32 0, ptr @busy release, align 4
  ret void
one:
  br i1 %known, label %hide, label %plain
hide:
  %key = load i32, ptr @key
  %before = call ptr @pthread_getspecific(i32 %key)
  %r4 = call i32 @pthread_setspecific(i32 %key, ptr null)
  call void %function(ptr %data)
  %r5 = call i32 @pthread_setspecific(i32 %key, ptr %before)
  ret void
plain:
  call void %function(ptr %data)
  ret void
}}

; threads << 20 | number of the calling thread; 0 outside of regions that all run
define internal i64 @self() nounwind {{
entry:
  %state = load atomic i32, ptr @state acquire, align 4
  %made = icmp eq i32 %state, 2
  %count = load i32, ptr @count
  %several = icmp sgt i32 %count, 1
  %known = and i1 %made, %several
  br i1 %known, label %ask, label %no
ask:
  %key = load i32, ptr @key
  %value = call ptr @pthread_getspecific(i32 %key)
  %both = ptrtoint ptr %value to i64
  ret i64 %both
no:
  ret i64 0
}}

define i32 @omp_get_thread_num() nounwind {{
  %self = call i64 @self()
  %number = and i64 %self, 1048575
  %small = trunc i64 %number to i32
  ret i32 %small
}}

define i32 @omp_get_num_threads() nounwind {{
  %self = call i64 @self()
  %threads = lshr i64 %self, 20
  %small = trunc i64 %threads to i32
  %none = icmp eq i32 %small, 0
  %count = select i1 %none, i32 1, i32 %small
  ret i32 %count
}}
"""


def code() -> bytes:
    """The object file, for every x86-64 processor."""
    return toolchain.emit_object(TEXT, "x86-64", "")
