"""Signatures of the program, its settings and its numbers, and of what stays ambiguous. Order matters."""

from __future__ import annotations

from slurm_ext.resume.signature_row import CUDA, ERRNO, SLURM, TORCH, Signature, row

GPU_USE: tuple[Signature, ...] = (
    # The program's own faults on the GPU
    row(
        "user.device-assert", r"device-side assert triggered|Assertion `.*` failed", "user-code", "R", "stop", "", CUDA
    ),
    row(
        "user.gpu-oom",
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError.*(?:GPU|CUDA)|HIP out of memory|"
        r"cudaErrorMemoryAllocation",
        "user-oom",
        "R",
        "stop",
        "gpu-oom",
        TORCH,
    ),
    row(
        "user.collective-mismatch",
        r"mismatch between collectives|Collectives? differ in the following|CollectiveFingerPrint",
        "user-code",
        "R",
        "stop",
        "",
        TORCH,
    ),
    # Host memory
    row(
        "host.oom",
        r"oom[-_]kill event|OOM Killed|Exceeded job memory limit|DUE TO MEMORY|"
        r"DefaultCPUAllocator: (?:can't|not enough)|"
        r"^\S*\s*MemoryError|Cannot allocate memory|std::bad_alloc|numpy.*ArrayMemoryError",
        "user-oom",
        "R",
        "oom",
        "",
        SLURM,
    ),
    # Checkpoint
    row(
        "ckpt.mismatch",
        r"in loading state_dict|size mismatch for|Missing key\(s\) in state_dict|Unexpected key\(s\) in state_dict",
        "user-config",
        "R",
        "stop",
        "",
        TORCH,
    ),
    row(
        "ckpt.damaged",
        r"PytorchStreamReader|finding central directory|archive is corrupted|deserializing header|"
        r"HeaderTooLarge|Metadata ?Incomplete ?Buffer|"
        r"HeaderTooSmall|InvalidHeader|UnpicklingError|pickle data was truncated|"
        r"EOFError: Ran out of input|[Cc]hecksum (?:mismatch|does not match)|"
        r"(?:unexpected end of|truncated) (?:file|archive|checkpoint)|BadZipFile|"
        r"unexpected EOF, expected \d+ more bytes|CheckpointException",
        "checkpoint",
        "R",
        "requeue",
        "",
        "vllm-project/speculators#739",
    ),
    row(
        "ckpt.incomplete",
        r"(?:FileNotFoundError|No such file or directory).*(?:\.distcp|\.metadata|mp_rank_|zero_pp_rank|"
        r"model_optim_rng|optim_states|-\d+-of-\d+\.)",
        "checkpoint",
        "R",
        "requeue",
        "node",
        TORCH,
    ),
)

PROGRAM: tuple[Signature, ...] = (
    # Configuration
    row(
        "config.arguments",
        r"error: (?:unrecognized arguments|the following arguments are required|argument \S+:|"
        r"ambiguous option|No such option)|"
        r"Error: (?:No such option|Missing option|Invalid value for)",
        "user-config",
        "R",
        "stop",
        "",
        "Python argparse, click",
    ),
    row(
        "config.hydra",
        r"ConfigAttributeError|MissingMandatoryValue|Could not override|ConfigCompositionException|"
        r"MissingConfigException|pydantic\S*ValidationError|"
        r"yaml\.\w+\.\w*Error|omegaconf\.errors|ScannerError|TOMLDecodeError",
        "user-config",
        "R",
        "stop",
        "",
        "hydra, pydantic, pyyaml",
    ),
    row(
        "config.parallel",
        r"(?:world.?size|batch.?size|num_attention_heads|num_layers|tensor.?(?:model.?)?parallel|"
        r"pipeline.?(?:model.?)?parallel|context.?parallel|expert)\S*.*"
        r"(?:divisible|multiple of|must be (?:equal|at least|less)|is not equal)",
        "user-config",
        "R",
        "stop",
        "",
        "Megatron-LM arguments",
    ),
    row(
        "config.path",
        r"Incorrect path_or_model_id|HFValidationError|is not a local folder|"
        r"not a valid model identifier|Can't load (?:tokenizer|the configuration|the model)|"
        r"does not appear to have a file named|Couldn't find (?:a dataset|any data file)|DatasetNotFoundError",
        "user-config",
        "R",
        "stop",
        "node",
        "huggingface transformers",
    ),
    row(
        "config.missing",
        r"FileNotFoundError|No such file or directory|NotADirectoryError|can't open file",
        "user-config",
        "R",
        "stop",
        "node",
        ERRNO,
    ),
    row(
        "config.command",
        r"command not found|: not found$|execve\(\): |Exec format error|fatal error: .*: No such file",
        "user-config",
        "R",
        "stop",
        "node",
        "sh(1)",
    ),
    row(
        "config.import",
        r"ModuleNotFoundError|ImportError|GLIBC(?:XX)?_[\d.]+'? not found|cannot open shared object file|"
        r"undefined symbol",
        "user-config",
        "R",
        "stop",
        "node",
        "ld.so(8), Python",
    ),
    row(
        "config.permission",
        r"PermissionError|Permission denied|\[Errno 13\]|Operation not permitted",
        "user-config",
        "R",
        "stop",
        "node",
        ERRNO,
    ),
    row(
        "config.limits",
        r"Too many open files|\[Errno 24\]|can't start new thread|pthread_create.*(?:failed|Resource)|"
        r"BlockingIOError.*Errno 11|"
        r"fork: .*(?:Resource temporarily|Cannot allocate)",
        "user-config",
        "R",
        "limits",
        "",
        ERRNO,
    ),
    # Numbers
    row(
        "numeric.rerun-other-gpu",
        r"(?:not reproducible on a different GPU|[Pp]ossible persistent error)",
        "infra-node",
        "R",
        "requeue-exclude",
        "here",
        "Megatron-LM rerun_state_machine",
    ),
    row(
        "numeric.nan",
        r"Unexpected result (?:nan|-?inf)|[Ff]ound (?:NaN|Inf)|(?:[Ll]oss|[Gg]rad\w*(?: norm)?) (?:is|"
        r"became|was|=|:) ?(?:not finite|nan|NaN|inf)\b.*|FloatingPointError|"
        r"[Nn]on-?finite (?:loss|grad)|(?:NaN|nan|Inf)\S* (?:detected|encountered|found) in|"
        r"returned nan values|contains? (?:NaN|Inf)",
        "numeric",
        "A",
        "replay",
        "",
        "Megatron-LM, torch autograd",
    ),
    # The program
    row(
        "user.shape",
        r"shapes cannot be multiplied|The size of tensor|must match the size|[Ee]xpected (?:all tensors|"
        r"input|hidden|scalar type)|"
        r"shape '\[.*\]' is invalid|[Ss]izes of tensors must match|Expected tensor",
        "user-code",
        "R",
        "stop",
        "",
        TORCH,
    ),
    row(
        "user.exception",
        r"(?:^|[\s:\]|])(?:\w+\.)*(?:KeyError|AssertionError|TypeError|IndexError|AttributeError|"
        r"NameError|SyntaxError|IndentationError|ZeroDivisionError|"
        r"UnboundLocalError|NotImplementedError|RecursionError|ValueError|UnicodeDecodeError|"
        r"JSONDecodeError|LookupError|OverflowError|StopIteration)(?::|$)",
        "user-code",
        "R",
        "stop",
        "",
        "Python built-in exceptions",
    ),
    # Ambiguous: decide only where nothing better is there
    row(
        "gpu.illegal-access",
        r"illegal memory access|unspecified launch failure|misaligned address|illegal instruction was|"
        r"cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|"
        r"cudaErrorLaunchFailure",
        "unknown",
        "A",
        "requeue",
        "again",
        CUDA,
    ),
    row(
        "gpu.unknown",
        r"CUDA error: unknown error|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|unhandled cuda error|Cuda failure",
        "unknown",
        "A",
        "requeue",
        "again",
        CUDA,
    ),
    row(
        "nccl.system",
        r"unhandled system error|ncclSystemError|ncclInternalError|internal error - please report",
        "unknown",
        "A",
        "requeue",
        "",
        "NCCL result codes",
    ),
    row("port.taken", r"Address already in use|EADDRINUSE|errno: 98", "unknown", "A", "requeue", "port", ERRNO),
    row("signal.bus", r"[Bb]us error|exitcode\s*: -7\b|\(exitcode: -7\)", "unknown", "A", "requeue", "", "signal(7)"),
    row(
        "signal.segv",
        r"Segmentation fault|SIGSEGV|exitcode\s*: -11\b|\(exitcode: -11\)",
        "unknown",
        "A",
        "requeue",
        "again",
        "signal(7)",
    ),
    row(
        "signal.kill",
        r"exitcode\s*: -9\b|\(exitcode: -9\)|\bKilled\b\s+(?:python|\S+/)|Signal 9 \(SIGKILL\)|task \d+: Killed",
        "unknown",
        "A",
        "requeue",
        "",
        "signal(7)",
    ),
    row(
        "program.exception",
        r"^(?:.{0,80}[\s:\]|])?[A-Za-z_][\w.]*(?:Error|Exception): ",
        "unknown",
        "A",
        "requeue",
        "again",
        "Python tracebacks",
    ),
)
