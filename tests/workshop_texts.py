"""Every text with a box and every question or blank of exercises 1 and 2, to be found again."""


def texts(list_: str) -> list[str]:
    """The texts of a list with `|` between them."""
    return [" ".join(text.split()) for text in list_.split("|")]


# Of the exercise sheet and of chapter 4.
BOXES_1 = texts(
    """
Attention operations dominate compute time | Matrix multiplications are the primary kernels |
Many small operations with low | Memory transfers visible between operations |
Matrix multiplications (mm, addmm, bmm) dominate compute time |
Attention operations consume ~35-45% | FFN operations consume ~30-40% |
Kernel launch overhead visible | Memory usage grows during forward pass |
Peak memory during attention computation | Gradient tensors allocated during backward pass |
Frequent small allocations | Memory fragmentation visible | Kernel fusion |
Memory layout optimization | Flash Attention implementation | Mixed precision training |
Batch size scaling | Fused QKV projection | Memory bandwidth | Compute utilization |
Kernel launch overhead (too many | Data loading | QKV projections in attention |
Gate/Up projections in SwiGLU | Layer normalization operations | All of the above | < 20% |
20-40% | 40-60% | > 60% | Gradient checkpointing | Flash Attention (reduce |
Mixed precision (reduce | Tensor fusion | Baseline training runs successfully |
Profiling data generated and analyzed | Performance metrics documented |
Top operations identified | Bottlenecks identified | Ready to proceed to memory analysis
"""
)
ANSWERS_1 = texts(
    """
Training speed | Peak memory usage | Final loss | Average time per step | GPU name and memory |
How much overhead did profiling add | What files were generated |
difference in memory usage with profiling | top 3 longest-running operations |
consumes the most GPU time | percentage of time is spent in attention operations |
How many different kernel types | What is the peak memory usage | When does peak memory occur |
memory spikes or unusual patterns | primary bottleneck |
operations would benefit most from fusion | Model FLOPS Utilization | spent in attention vs FFN |
what optimization would help most | Top 3 optimization targets
"""
)
# Of chapter 5.
BOXES_2 = texts(
    """
It doubles | More than double | During forward pass | During attention computation |
During backward pass | During optimizer step | clear drops | memory returns to baseline |
Linear (~2x | Quadratic (~4x | Between linear and quadratic | Low GPU compute |
High memory bandwidth | Many small | Frequent memory transfers | High GPU compute |
Low memory bandwidth | Large matrix | Good arithmetic | Batch size scaling: Linear |
Batch size scaling: Superlinear | Batch size scaling: Sublinear |
Sequence length scaling: Linear | Sequence length scaling: Quadratic |
Sequence length scaling: Cubic | Forward pass | Backward pass | Optimizer step |
Attention computation | Reduce attention memory | Reduce activation memory |
Reduce parameter memory | Reduce fragmentation | Memory-bound (low | Compute-bound (high |
Mixed (moderate | Memory profiling completed | Sequence length scaling analyzed |
Memory hotspots identified | Bandwidth utilization calculated | Optimization priorities ranked |
Ready to proceed
"""
)
ANSWERS_2 = texts(
    """
Memory Scaling | Throughput Scaling | Memory Efficiency | Peak memory occurs at |
Largest memory spike | Memory is deallocated | Memory usage pattern |
What is the memory scaling pattern | steepest memory scaling | At what sequence length |
Memory Traffic per Step | Memory Bandwidth Used | Theoretical Peak Bandwidth |
Bandwidth Utilization | Arithmetic Intensity | Workload Classification |
What is the memory scaling behavior | Where is peak memory consumed |
primary memory optimization target | memory-bound or compute-bound |
What memory optimization would provide
"""
)
