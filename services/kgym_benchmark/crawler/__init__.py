"""syzbot's dashboard, Git trees and mailing lists, read politely into records of bugs."""
