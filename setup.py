"""Packaging: metadata is in pyproject.toml; this file adds `mmattn/.mim`.

OpenMMLab tools look for a package's configs, tools and model index in
`<package>/.mim`. A wheel (also one that is built from an sdist) carries copies; an
editable install links to the checkout, so that edits to configs take effect.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
MIM_ENTRIES = ('configs', 'tools', 'model-index.yml')


class build_py_with_mim(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            self._fill_mim(ROOT / 'mmattn' / '.mim', link=True)
        else:
            self._fill_mim(Path(self.build_lib) / 'mmattn' / '.mim', link=False)

    def _fill_mim(self, mim_dir: Path, link: bool):
        if mim_dir.exists():
            shutil.rmtree(mim_dir)
        mim_dir.mkdir(parents=True)
        for entry in MIM_ENTRIES:
            source, target = ROOT / entry, mim_dir / entry
            if link:
                target.symlink_to(source, target_is_directory=source.is_dir())
            elif source.is_dir():
                shutil.copytree(
                    source, target, ignore=shutil.ignore_patterns('__pycache__')
                )
            else:
                shutil.copy2(source, target)


setup(cmdclass={'build_py': build_py_with_mim})
