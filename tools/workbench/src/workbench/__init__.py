"""Shared tools of the workspace: demo runner, benchmark harness, pins, package skeletons.

No library in ``packages/`` imports this one; the contracts between the two are entry points
(demos) and plain files (benchmarks), described in the README.
"""

from workbench.workspace import Member, Workspace, WorkspaceError, find_workspace

__all__ = ["Member", "Workspace", "WorkspaceError", "find_workspace"]
