"""A Scrapy project with the crawler ``site``, which follows every link of one site.

The package contains it, so every installation has it. Our code does not import it, and it does not
import our code. The runner starts it in the folder of its ``scrapy.cfg``, like any other project.
"""
