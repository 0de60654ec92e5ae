"""The stages init and rescale: files of start weights, and of their rescalings, for the runs of a family of networks.

python -m paper.initial init|rescale FAMILY --index FILE

Files that exist are kept, and runs that exist need none.
"""

import argparse
import hashlib
from pathlib import Path

from paper import cli, plan, results, runs, starts


def main() -> None:
    """Read the command line, compute what has no file, write the index."""
    parser = argparse.ArgumentParser(prog="python -m paper.initial", description=__doc__)
    parser.add_argument("stage", choices=("init", "rescale"))
    parser.add_argument("family", help="networks of one kind and activation, such as mlp or mlp_gelu")
    cli.add_config_options(parser)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the presets' folders")
    parser.add_argument("--again", type=float, default=0.0, metavar="TIME", help="compute older files again")
    parser.add_argument("--index", type=Path, required=True, help="file that lists what was saved, with checksums")
    given = parser.parse_args()
    results.check_folder(given.results)
    found = plan.read(given)
    specs = list(found.training(given.family).values())
    if not specs:
        known = ", ".join(sorted({runs.family(spec) for spec in found.training().values()}))
        raise cli.PaperError(f"expected a family of the preset {found.preset} ({known}), got {given.family!r}.")
    if not given.again:
        specs = results.due(given.results, specs)  # runs that exist need no start
    rescaled = given.stage == "rescale"
    if rescaled:
        specs = [spec for spec in specs if runs.has_scales(spec)]
    save = starts.save_scales if rescaled else starts.save_start
    paths = {save(spec, given.results, given.again): spec for spec in specs}
    found = {path.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    results.write_json(given.index, found)
    cli.say(f"{given.stage}: {len(paths)} files")


if __name__ == "__main__":
    cli.run(main)
