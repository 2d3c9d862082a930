"""The crawler: reads syzbot's dashboard, Git trees and mailing lists into records of bugs."""
