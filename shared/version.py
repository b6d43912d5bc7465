"""The version of Weir. `pyproject.toml` takes it from here; an image has the modules, and no
package of that name.
"""

VERSION = "0.3.0"
