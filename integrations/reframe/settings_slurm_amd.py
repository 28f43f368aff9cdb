"""ReFrame settings for a Slurm cluster with AMD GPUs: an example. Lines with `yours:` need a look.

Beforehand: the program installed, built with the torch for ROCm, in a folder that the nodes see as
well.
"""

# yours: partition, account, anything else that sbatch needs
GPU_ACCESS = ["--partition=gpu", "--account=project"]
CPU_ACCESS = ["--partition=cpu", "--account=project"]

site_configuration = {
    "systems": [
        {
            "name": "cluster",
            "descr": "Slurm cluster with AMD GPUs",
            "hostnames": ["login.*"],  # yours: names of the login nodes
            "partitions": [
                {
                    "name": "gpu",
                    "descr": "nodes with eight MI300X",
                    "scheduler": "slurm",
                    "launcher": "srun",
                    "access": GPU_ACCESS,
                    "environs": ["default"],
                    "max_jobs": 8,
                    # yours: rocminfo names the architecture; MI250X counts its dies, 8 of gfx90a
                    "devices": [
                        {"type": "gpu", "arch": "gfx942", "model": "MI300X", "num_devices": 8}
                    ],
                    # yours: the cores of a node, of which a test takes its GPU's share
                    "processor": {"num_cpus": 96, "num_cpus_per_core": 1},
                    # some sites: --gres=gpu:{num_gpus_per_node}
                    "resources": [
                        {
                            "name": "_rfm_gpu",
                            "options": ["--gpus-per-node={num_gpus_per_node}"],
                        }
                    ],
                },
                {
                    "name": "cpu",
                    "descr": "nodes with two processors of 64 cores",
                    "scheduler": "slurm",
                    "launcher": "srun",
                    "access": CPU_ACCESS,
                    "environs": ["default"],
                    "max_jobs": 8,
                    "processor": {"num_cpus": 256, "num_cpus_per_core": 2},  # yours
                },
            ],
        }
    ],
    # yours: modules that the program needs at run time, e.g. ["rocm"]
    "environments": [{"name": "default", "modules": []}],
}
