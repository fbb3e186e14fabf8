"""The dashboard's pages.

pages without scripts                        test_pages.py
pages in a headless Chromium                 test_browser.py
small windows and long tasks, in a Chromium  test_windows.py
tasks with many steps                        test_long_tasks.py
values of the views                          test_views.py
the form of a task                           test_forms.py
the playground                               test_playground.py
samples                                      test_samples.py
aliases                                      test_aliases.py
shared accelerators                          test_accelerators.py
files, webhooks, keys, deletions             test_tenancy.py
hostile texts                                test_text.py
hostile requests                             test_hostile_requests.py
sealed sessions                              test_session.py
keys with their roles' rights                test_real_keys.py
scripts and styles                           test_assets.py

Helpers: site.py (a gateway and its browsers), browsing.py (what a browser sees), reading.py (texts of pages), hostile.py (texts), made.py
(data of views).
"""
