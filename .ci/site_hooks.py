"""Hooks of MkDocs: diagrams work offline, and inline code breaks at spaces and separators only.

Mermaid (MIT licence) comes from the package mermaidx, which contains the file `dist/mermaid.min.js` of npm's mermaid
unchanged. Pages without a diagram do not load it.
"""

import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

_SCRIPT = "javascripts/mermaid.min.js"
_SHA256 = "74d7c46dabca328c2294733910a8aa1ed0c37451776e8d5295da38a2b758fb9b"
"""Of dist/mermaid.min.js in npm's mermaid 11.16.0."""
_INLINE_CODE = re.compile(r"(?<!<pre>)(?<!</span>)<code>([^<]+)</code>")
_SEPARATOR = re.compile(r"(?<=\w)(?=/\w)|(?=\[/)|(?<=])(?=/)|(?<=})(?=/)|(?<=::)|(?<=,)(?=\w)")
_LONG_WORD = 24
_BREAKPOINTS = {
    "assets/stylesheets/main.*.min.css": {
        "76.1875em": "68.6875em",
        "76.234375em": "68.734375em",
        "76.25em": "68.75em",
    },
    "assets/stylesheets/palette.*.min.css": {"76.234375em": "68.734375em", "76.25em": "68.75em"},
    "assets/javascripts/bundle.*.min.js": {"76.25em": "68.75em"},
}
"""Widths at which the theme shows the navigation beside the text, and what the site uses in their place: windows of
1,200 pixels, half a large screen, have room for it."""


def on_files(files_of_site: Any, config: Any) -> Any:
    """Add the script to the site."""
    script = files("mermaidx").joinpath("assets/mermaid.js").read_bytes()
    if hashlib.sha256(script).hexdigest() != _SHA256:
        raise PluginError("mermaidx does not contain mermaid 11.16.0: install the dependency group docs")
    files_of_site.append(File.generated(config, _SCRIPT, content=script))
    return files_of_site


def on_page_content(html: str, **_: Any) -> str:
    """Keep the words of inline code whole; long ones may break at the separators of paths and lists."""

    def word(found: "re.Match[str]") -> str:
        if len(found[0]) <= _LONG_WORD:
            return f'<span class="word">{found[0]}</span>'
        return f'<span class="word long">{_SEPARATOR.sub("<wbr>", found[0])}</span>'

    return _INLINE_CODE.sub(lambda code: f"<code>{re.sub(r'[^ ]+', word, code[1])}</code>", html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load the script in front of the theme's, which would fetch it from another host otherwise."""
    if 'class="mermaid"' not in output:
        return output
    source = "../" * page.url.count("/") + _SCRIPT
    return output.replace("</head>", f'<script src="{source}"></script></head>', 1)


def on_post_build(config: Any) -> None:
    """Show the navigation from 1,100 pixels on instead of 1,220. Raises PluginError if the theme has other files."""
    site = Path(config.site_dir)
    for pattern, replacements in _BREAKPOINTS.items():
        (path,) = site.glob(pattern)
        text = path.read_text(encoding="utf-8")
        if not any(before in text for before in replacements):
            raise PluginError(
                f"{path} has none of the breakpoints {', '.join(replacements)}: adapt .ci/site_hooks.py"
            )
        for before, after in replacements.items():
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
