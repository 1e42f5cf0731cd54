"""Signatures of teardown, of hardware, and of what lies outside the job: rights, services, storage. Order matters."""

from __future__ import annotations

from slurm_ext.resume.signature_row import CUDA, ERRNO, TORCH, Signature, row

TEARDOWN: tuple[Signature, ...] = (
    # Teardown: what the loss of a peer or a signal makes others print. First, so that no later row sees them.
    row(
        "teardown.peer",
        r"remote process exited or there was a network error|ncclRemoteError|"
        r"DistBackendError(?!.*(?:unhandled|invalid))|"
        r"Connection (?:reset|closed) by (?:remote )?peer|[Bb]roken pipe|BrokenPipeError|"
        r"ConnectionResetError|Connection refused",
        "unknown",
        "B",
        "requeue",
        source="NVIDIA/nccl#795",
    ),
    row(
        "teardown.signal",
        r"closing signal SIG|SignalException|got signal: (?:15|2)\b|death signal|Killing subprocess|KeyboardInterrupt|"
        r"DUE TO (?:TASK FAILURE|JOB REQUEUE)|Job step aborted|entire process down|Some NCCL operations have failed|"
        r"exits with return code|sigkill_handler",
        "unknown",
        "B",
        "requeue",
        source=TORCH,
    ),
    row(
        "teardown.store",
        r"TCPStore.*(?:timed? ?out|closed|reset)|RendezvousClosedError|RendezvousTimeoutError|"
        r"RendezvousConnectionError|"
        r"[Ss]ocket Timeout|failed to recv, got 0 bytes",
        "unknown",
        "B",
        "requeue",
        source="NVIDIA/nvidia-resiliency-ext#348",
    ),
    row(
        "teardown.launcher",
        r"ChildFailedError|CalledProcessError|ProcessExitedException|Root Cause \(first observed|--- Logging error ---",
        "unknown",
        "B",
        "requeue",
        source=TORCH,
    ),
    row(
        "teardown.watchdog",
        r"Watchdog caught collective|[Hh]eartbeat monitor timed out|last enqueued (?:NCCL )?work|"
        r"no heartbeat of its watchdog|"
        r"Stack trace of the failed collective",
        "unknown",
        "B",
        "requeue",
        source=TORCH,
    ),
)

HARDWARE: tuple[Signature, ...] = (
    # Hardware and driver, said by the program
    row(
        "gpu.ecc",
        r"uncorrectable ECC error|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE",
        "infra-node",
        "R",
        "requeue-exclude",
        "here",
        CUDA,
    ),
    row(
        "gpu.nvlink",
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "infra-fabric",
        "R",
        "requeue-exclude",
        "here",
        CUDA,
    ),
    row(
        "gpu.contained",
        r"Invalid access of peer GPU memory over nvlink|cudaErrorContained|contained (?:memory )?error",
        "infra-node",
        "A",
        "requeue",
        "",
        CUDA,
    ),
    row(
        "gpu.lost",
        r"fallen off the bus|GPU is lost|NVML_ERROR_GPU_IS_LOST|GPU requires reset|"
        r"Unable to determine the device handle",
        "infra-node",
        "R",
        "requeue-exclude",
        "here",
        "NVML return codes",
    ),
    row(
        "gpu.not-ready",
        r"system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY|Error 802",
        "infra-node",
        "R",
        "requeue-exclude",
        "here",
        CUDA,
    ),
    row(
        "gpu.driver-mismatch",
        r"Driver/library version mismatch|NVML: Unknown Error|Failed to initialize NVML|"
        r"system has unsupported display driver|Error 803|"
        r"nvidia-container-cli: (?:initialization|detection) error|couldn't communicate with the NVIDIA driver",
        "infra-node",
        "R",
        "requeue-exclude",
        "here",
        "NVML return codes",
    ),
    row(
        "gpu.busy",
        r"busy or unavailable|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "infra-node",
        "R",
        "requeue-exclude",
        "here",
        CUDA,
    ),
    row(
        "gpu.none",
        r"[Nn]o CUDA-capable device|No CUDA GPUs are available|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE|"
        r"invalid device ordinal|Found no NVIDIA driver",
        "user-config",
        "R",
        "stop",
        "node",
        CUDA,
    ),
    row(
        "gpu.driver-old",
        r"driver version is insufficient|NVIDIA driver on your system is too old|forward compatibility was attempted",
        "user-config",
        "R",
        "stop",
        "node",
        CUDA,
    ),
    row(
        "fabric.link",
        r"NET/IB : Got async event : (?:port error|link down|device fatal)|NET/OFI.*(?:link down|port error)",
        "infra-fabric",
        "R",
        "requeue-exclude",
        "here",
        "NCCL net_ib",
    ),
    row(
        "fabric.peer",
        r"Peer host id: i-[0-9a-f]+|NET/IB : Got completion from peer|NET/OFI Request .*completed with error",
        "infra-fabric",
        "A",
        "requeue",
        "peer",
        "aws/aws-ofi-nccl#346, NCCL net_ib",
    ),
    row(
        "fabric.none",
        r"NET/OFI.*(?:No eligible providers|Unable to find a protocol)|fi_getinfo.*(?:failed|No data available)",
        "user-config",
        "R",
        "stop",
        "node",
        "aws/aws-ofi-nccl",
    ),
)

OUTSIDE: tuple[Signature, ...] = (
    # Rights and credentials
    row(
        "auth.expired",
        r"ExpiredToken|token (?:included in the request is|has) expired|RequestExpired|"
        r"InvalidClientTokenId|InvalidAccessKeyId|SignatureDoesNotMatch",
        "user-config",
        "R",
        "stop",
        "",
        "S3 error codes",
    ),
    row(
        "auth.denied",
        r"AccessDenied|Access Denied|40[13] Client Error|GatedRepoError|RepositoryNotFoundError|"
        r"error code: 40[13]|401 Unauthorized|403 Forbidden|"
        r"Invalid (?:API key|username or password|user token)|pull access denied|unauthorized: ",
        "user-config",
        "R",
        "stop",
        "",
        "S3 error codes; huggingface_hub errors",
    ),
    row(
        "auth.none",
        r"Unable to locate credentials|NoCredentialsError|CredentialRetrievalError|"
        r"InstanceMetadata.*(?:timed out|failed)",
        "user-config",
        "R",
        "stop",
        "node",
        "botocore exceptions",
    ),
    row(
        "image.unknown",
        r"manifest unknown|manifest for .* not found|error code: 404|failed to resolve reference",
        "user-config",
        "R",
        "stop",
        "",
        "OCI distribution spec",
    ),
    # Services outside
    row(
        "service.throttled",
        r"\b429\b.*(?:Too Many|Client Error)|Too Many Requests|toomanyrequests|\(?SlowDown\)?|"
        r"[Rr]educe your request rate|ThrottlingException|"
        r"RequestLimitExceeded|rate limit",
        "external-service",
        "R",
        "wait-requeue",
        "",
        "S3 error codes; RFC 6585",
    ),
    row(
        "service.down",
        r"50[0234] (?:Server Error|Service Unavailable|Bad Gateway|Gateway Time-?out|Internal Server)|"
        r"ServiceUnavailable|\(InternalError\)|"
        r"(?:Read|Connect)Timeout(?:Error)?\b|Max retries exceeded|MaxRetryError|EndpointConnectionError|"
        r"ConnectTimeout|LocalEntryNotFoundError|CommError",
        "external-service",
        "R",
        "wait-requeue",
        "node",
        "botocore, requests",
    ),
    row(
        "service.name",
        r"Name or service not known|Temporary failure in name resolution|Could not resolve host|"
        r"nodename nor servname|NameResolutionError|getaddrinfo failed",
        "external-service",
        "R",
        "wait-requeue",
        "node",
        "gai_strerror(3)",
    ),
    # Storage
    row("storage.full", r"No space left on device|\[Errno 28\]|ENOSPC", "storage", "R", "wait-requeue", "space", ERRNO),
    row("storage.quota", r"[Dd]isk quota exceeded|\[Errno 122\]|EDQUOT", "storage", "R", "wait-requeue", "", ERRNO),
    row(
        "storage.stale",
        r"Stale (?:NFS )?file handle|\[Errno 116\]|ESTALE",
        "storage",
        "R",
        "wait-requeue",
        "node",
        ERRNO,
    ),
    row("storage.endpoint", r"[Tt]ransport endpoint|\[Errno 10[78]\]", "storage", "R", "wait-requeue", "node", ERRNO),
    row(
        "storage.io",
        r"Input/output error|\[Errno 5\]|Remote I/O error|\[Errno 121\]|Communication error on send|\[Errno 70\]",
        "storage",
        "R",
        "wait-requeue",
        "node",
        ERRNO,
    ),
    row("storage.read-only", r"Read-only file system|\[Errno 30\]", "storage", "R", "hold", "node", ERRNO),
    row(
        "storage.timeout",
        r"\[Errno 110\] Connection timed out: '/|Connection timed out during (?:read|write)",
        "storage",
        "R",
        "wait-requeue",
        "node",
        ERRNO,
    ),
)
