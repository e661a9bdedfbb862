"""The words that a recording may repeat of a program's arguments and variables."""

from __future__ import annotations

__all__ = ["NAMES", "VALUES", "VARIABLES"]

_NAMES = """
accum accumulate accumulation adam amp args attention b backend backward batch batches batchsize
beta beta1 beta2 betas bf16 block bs bucket buckets cap cfg chunk chunks clip compute config
context count cp ctx d data dataloader dataset decay depth device dim dims dist distributed dmodel
dp dropout dtype e embd embed embedding ep epoch epochs eps epsilon eval every expert experts
factor feed ff ffn forward fp16 fp32 fp8 gbs global gpu gpus grad gradient head heads hidden image
img in intermediate interval iter iterations iters j k kv label layer layers learning len length
local log lr max mb mbs micro microbatch microbatches min mixed mode model momentum n ndim nepochs
nhead nheads nlayers nnodes node nodes norm nproc nthreads num number numepochs numworkers nworkers
opt optim optimizer out parallel parallelism params per pipeline pp prec precision prefetch proc
process rank ranks rate reduce resolution samples save scale seed seq seqlen sequence sharding
shards size sizes smoothing stage stages start step steps strategy stride tensor tf32 threads top
total tp train trainer training val vocab warmup wd weight width window worker workers world zero
"""
_VALUES = """
adafactor adagrad adam adamw auto bf16 cpu cuda ddp deepspeed dp false fp16 fp32 fp8 fsdp fsdp2
full_shard gloo half hybrid_shard lamb lion mpi mps muon nccl no no_shard none off on pp rmsprop
sgd shard_grad_op tf32 tp true ucc yes
"""
_VARIABLES = """
CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
CUDA_VISIBLE_DEVICES GLIBC_TUNABLES GLOO_DEVICE_TRANSPORT GLOO_SOCKET_IFNAME NCCL_ALGO
NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_BUFFSIZE NCCL_CGA_CLUSTER_SIZE NCCL_COLLNET_ENABLE
NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DMABUF_ENABLE NCCL_GRAPH_REGISTER
NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_QPS_PER_CONNECTION
NCCL_IB_RETRY_CNT NCCL_IB_SL NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_LAUNCH_MODE
NCCL_LOCAL_REGISTER NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS
NCCL_MNNVL_ENABLE NCCL_NCHANNELS_PER_NET_PEER NCCL_NET NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ
NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVB_DISABLE NCCL_NVLS_ENABLE NCCL_P2P_DIRECT_DISABLE
NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_PXN_DISABLE NCCL_SHM_DISABLE NCCL_SOCKET_FAMILY
NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS OMP_NUM_THREADS TORCH_CUDA_ARCH_LIST TORCH_DISTRIBUTED_DEBUG
TORCH_FR_BUFFER_SIZE TORCH_GLOO_LAZY_INIT TORCH_NCCL_ASYNC_ERROR_HANDLING
TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_CUDA_EVENT_CACHE
TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING
TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY
TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_USE_COMM_NONBLOCKING
"""

NAMES = frozenset(_NAMES.split())
"""Options whose names are made of these words keep a value that is a number or in ``VALUES``."""

VALUES = frozenset(_VALUES.split())
"""Values that are words; besides them the names of dtypes."""

VARIABLES = frozenset(_VARIABLES.split())
"""Environment variables that keep their values."""
