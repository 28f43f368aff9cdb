"""ReFrame settings for the machine one is logged in to: no scheduler, one test at a time."""

site_configuration = {
    "systems": [
        {
            "name": "local",
            "descr": "this machine",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "default",
                    "scheduler": "local",
                    "launcher": "local",
                    "environs": ["default"],
                    # two measurements at once would disturb each other
                    "max_jobs": 1,
                    # With a GPU, so that --device is not cpu:
                    # "devices": [{"type": "gpu", "arch": "gfx942", "num_devices": 1}],
                }
            ],
        }
    ],
    "environments": [{"name": "default"}],
}
