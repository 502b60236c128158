"""Capture: directories and files on disk in, trees and contents of a store out."""
