"""What a tenant has beside tasks, over HTTP.

owned.py     what has a name and an owner
aliases.py   HttpAliases
webhooks.py  HttpWebhooks
files.py     HttpFiles, whose uploads are sent a part at a time
forms.py     a form with a file, a part at a time
"""
