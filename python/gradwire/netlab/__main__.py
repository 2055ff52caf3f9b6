from gradwire.netlab.command import app

app(prog_name="python -m gradwire.netlab")
