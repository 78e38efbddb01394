"""A Scrapy project with the crawler ``site``, which follows every link on one site.

The package contains this project, so every installation has the crawler. Our code does not import
the project, and the project does not import our code. The runner starts the project in the folder
of its ``scrapy.cfg``, like any other project.
"""
