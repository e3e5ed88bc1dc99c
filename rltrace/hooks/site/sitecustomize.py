"""First on PYTHONPATH in a traced job: boots rltrace, then runs the sitecustomize that it hides.

It is read by whatever Python the job starts, 2.7 included, so its syntax is the common one. Below
3.10 it only does the second half. rltrace is loaded from beside this file, without putting the
folder that holds it (a whole site-packages, perhaps of another environment) on sys.path.
"""
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _boot():
    if sys.version_info < (3, 10) or not os.environ.get("RLTRACE_RUN"):
        return
    if "rltrace" not in sys.modules:
        from _frozen_importlib_external import spec_from_file_location

        package = os.path.dirname(os.path.dirname(_HERE))
        spec = spec_from_file_location(
            "rltrace",
            os.path.join(package, "__init__.py"),
            submodule_search_locations=[package],
        )
        _execute(spec, "rltrace")
    from rltrace.hooks.boot import boot

    boot()


def _execute(spec, name):
    from _frozen_importlib import module_from_spec

    before = sys.modules.get(name)
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        raise


def _drop_empty_entry():
    # A Ray worker's PYTHONPATH is "<here>:${PYTHONPATH}" filled in by Ray. Where the cluster has
    # none, the colon that remains puts the working directory on sys.path, where it does not belong
    # unless a .pth file names it (an editable install of what lies there).
    if os.environ.get("PYTHONPATH") != _HERE + os.pathsep:
        return
    os.environ["PYTHONPATH"] = _HERE
    working = os.getcwd()
    place = sys.path.index(_HERE) + 1 if _HERE in sys.path else len(sys.path)
    if sys.path[place : place + 1] in ([""], [working]):
        del sys.path[place]
        if _named_by_pth(working):
            sys.path.append(working)


def _named_by_pth(path):
    for folder in [entry for entry in sys.path if entry.endswith("-packages")]:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.endswith(".pth"):
                with open(os.path.join(folder, name), "rb") as lines:
                    if path.encode() in [os.path.join(folder.encode(), x.strip()) for x in lines]:
                        return True
    return False


def _run_hidden():
    # What lies before this folder hides it, and may have led here: another rltrace's folder, too.
    whole = [os.path.abspath(entry or ".") for entry in sys.path]
    behind = sys.path[whole.index(_HERE) :] if _HERE in whole else sys.path
    rest = [entry for entry in behind if os.path.abspath(entry or ".") != _HERE]
    if sys.version_info < (3, 5):
        import imp

        try:
            found = imp.find_module("sitecustomize", rest)
        except ImportError:
            return
        ours = sys.modules.pop("sitecustomize", None)
        try:
            imp.load_module("sitecustomize", *found)
        finally:
            if found[0]:
                found[0].close()
            if "sitecustomize" not in sys.modules:
                sys.modules["sitecustomize"] = ours
        return
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        _execute(spec, "sitecustomize")


for _part in (_drop_empty_entry, _boot):
    try:
        _part()
    except Exception:  # the job goes on
        _error = sys.exc_info()[1]
        try:
            sys.stderr.write("rltrace: this process is not traced well: %r\n" % (_error,))
        except Exception:
            pass

_run_hidden()
